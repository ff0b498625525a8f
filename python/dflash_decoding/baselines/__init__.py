"""Drafters that DFlash is compared with, in the same decoding loop and trained on the same data."""

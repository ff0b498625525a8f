"""Types of the compiled host-side module."""

from typing import Any

def build_info() -> dict[str, Any]: ...

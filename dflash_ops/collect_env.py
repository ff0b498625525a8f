"""`python -m dflash_ops.collect_env` prints `dflash_ops.collect_env()` as JSON."""

import json

import dflash_ops

if __name__ == "__main__":
    print(json.dumps(dflash_ops.collect_env(), indent=2))

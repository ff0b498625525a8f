"""Makes the conformance PTX with Triton 3.8 (no GPU needed): `python -m tests.ptxsim.conformance.make_ptx`.

Writes one .ptx a case beside this file, and cases.json with what a launch needs. Triton is not a test requirement:
both are committed.
"""

import json
import os
from pathlib import Path
from typing import Any

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # no paths of the machine in the PTX

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.ptxsim.conformance import triton_kernels as kernels

HERE = Path(__file__).parent
ELEMENT = {"fp16": "fp16", "bf16": "bf16", "fp32": "fp32", "i8": "i8"}


def matmul_case(kind: str, out: str, layout: str, blocks: tuple[int, int, int], warps: int = 4) -> dict[str, Any]:
    """`layout` of A and B: r(ow-major) or c(olumn-major); the unit stride is a constant, so loads are vectors."""
    unit = {"r": ("a_column", "b_column"), "c": ("a_row", "b_row")}
    ones = {unit[layout[0]][0]: 1, unit[layout[1]][1]: 1}
    names = ["a", "b", "c", "m", "n", "k", "a_row", "a_column", "b_row", "b_column"]
    types = [f"*{kind}", f"*{kind}", f"*{out}"] + ["i32"] * 7
    constants = {"block_m": blocks[0], "block_n": blocks[1], "block_k": blocks[2]} | ones
    constants["accumulator"] = {"fp32": triton.language.float32, "i32": triton.language.int32}[out]
    return {
        "kernel": kernels.matmul,
        "signature": {n: "constexpr" if n in ones else t for n, t in zip(names, types, strict=True)},
        "constants": constants,
        "aligned": [n for n in names if n not in ones],  # sizes too: masks are whole vectors, loads asynchronous
        "warps": warps,
        "stages": 3,
    }


def tensor_map_case(kind: str, out: str, blocks: tuple[int, int, int], add: bool) -> dict[str, Any]:
    m, n, k = blocks
    return {
        "kernel": kernels.matmul_tensor_map,
        "signature": {
            "a": f"tensordesc<{kind}[{m},{k}]>",
            "b": f"tensordesc<{kind}[{n},{k}]>",
            "c": f"tensordesc<{out}[{m},{n}]>",
            "k": "i32",
        },
        "constants": {"block_m": m, "block_n": n, "block_k": k, "add": add},
        "aligned": ["k"],
        "stages": 3,
    }


def attention_case(kind: str) -> dict[str, Any]:
    return {
        "kernel": kernels.attention,
        "signature": {n: f"*{kind}" for n in "qkv"} | {"out": "*fp32", "length": "i32", "scale": "fp32"},
        "constants": {"block_q": 64, "block_k": 32, "width": 64},
        "aligned": ["q", "k", "v", "out"],
        "stages": 2,
    }


def simple_case(kernel: Any, signature: dict[str, str], block: int) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "signature": signature,
        "constants": {"block": block},
        "aligned": [n for n, t in signature.items() if t.startswith("*")],
    }


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "vector_add_80": (
        80,
        simple_case(kernels.vector_add, dict.fromkeys(["x", "y", "out"], "*fp32") | {"n": "i32"}, 512),
    ),
    "row_softmax_80": (80, simple_case(kernels.row_softmax, {"x": "*bf16", "out": "*fp32", "columns": "i32"}, 1024)),
    "row_argmax_80": (
        80,
        simple_case(kernels.row_argmax, {"x": "*fp16", "value": "*fp32", "index": "*i32", "columns": "i32"}, 512),
    ),
    "histogram_80": (80, simple_case(kernels.histogram, {"x": "*i32", "bins": "*i32", "n": "i32"}, 256)),
    "running_sum_80": (80, simple_case(kernels.running_sum, {"x": "*fp32", "out": "*fp32", "n": "i32"}, 512)),
    "matmul_bf16_rr_80": (80, matmul_case("bf16", "fp32", "rr", (32, 64, 32))),
    "matmul_fp16_rc_80": (80, matmul_case("fp16", "fp32", "rc", (64, 32, 64))),
    "matmul_bf16_cr_80": (80, matmul_case("bf16", "fp32", "cr", (32, 32, 32), warps=2)),
    "matmul_tf32_rr_80": (80, matmul_case("fp32", "fp32", "rr", (32, 32, 32))),
    "matmul_i8_rc_80": (80, matmul_case("i8", "i32", "rc", (32, 32, 64))),
    "attention_bf16_80": (80, attention_case("bf16")),
    "matmul_bf16_rr_90": (90, matmul_case("bf16", "fp32", "rr", (64, 64, 64))),
    "matmul_fp16_rc_90": (90, matmul_case("fp16", "fp32", "rc", (64, 64, 64))),
    "matmul_bf16_cr_90": (90, matmul_case("bf16", "fp32", "cr", (64, 64, 64))),
    "matmul_bf16_cc_90": (90, matmul_case("bf16", "fp32", "cc", (128, 32, 32), warps=8)),
    "matmul_tf32_rc_90": (90, matmul_case("fp32", "fp32", "rc", (64, 32, 32))),
    "matmul_i8_rc_90": (90, matmul_case("i8", "i32", "rc", (64, 32, 64))),
    "attention_bf16_90": (90, attention_case("bf16")),
    "tensor_map_bf16_90": (90, tensor_map_case("bf16", "bf16", (64, 64, 64), False)),
    "tensor_map_fp16_narrow_90": (90, tensor_map_case("fp16", "fp32", (64, 32, 32), False)),
    "tensor_map_add_90": (90, tensor_map_case("bf16", "fp32", (64, 32, 32), True)),
}


def main() -> None:
    described = {}
    for name, (capability, case) in CASES.items():
        signature = case["signature"] | dict.fromkeys(case["constants"], "constexpr")
        order = case["kernel"].arg_names
        source = ASTSource(
            case["kernel"],
            signature={n: signature[n] for n in order},
            constexprs=case["constants"],
            attrs={(order.index(n),): [["tt.divisibility", 16]] for n in case["aligned"]},
        )
        options = {"num_warps": case.get("warps", 4), "num_stages": case.get("stages", 1)}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        (HERE / f"{name}.ptx").write_text(compiled.asm["ptx"])
        described[name] = {
            "entry": compiled.metadata.name,
            "block": 32 * compiled.metadata.num_warps,
            "shared": compiled.metadata.shared,
            "blocks": {n: v for n, v in case["constants"].items() if isinstance(v, int)},
            "tensor_maps": [dict(meta) for meta in getattr(compiled.metadata, "tensordesc_meta", None) or []],
        }
        print(name, len(compiled.asm["ptx"]), described[name])
    (HERE / "cases.json").write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()

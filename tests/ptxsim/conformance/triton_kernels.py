# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, block: tl.constexpr):
    """out = x + y over n elements, the tail masked."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def row_softmax(x, out, columns, block: tl.constexpr):
    """Softmax of each row of bf16 logits."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    mask = at < columns
    values = tl.load(x + row * columns + at, mask=mask, other=-float("inf")).to(tl.float32)
    weights = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, weights / tl.sum(weights, 0), mask=mask)


@triton.jit
def row_argmax(x, value, index, columns, block: tl.constexpr):
    """Largest value of each row and its smallest index."""
    row = tl.program_id(0)
    best = tl.full((block,), -float("inf"), tl.float32)
    where = tl.zeros((block,), tl.int32)
    for start in range(0, columns, block):
        at = start + tl.arange(0, block)
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        where = tl.where(values > best, at, where)
        best = tl.maximum(values, best)
    largest = tl.max(best, 0)
    tl.store(value + row, largest)
    tl.store(index + row, tl.min(tl.where(best == largest, where, 2147483647), 0))


@triton.jit
def histogram(x, bins, n, block: tl.constexpr):
    """Atomic counts of small integers."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < n
    tl.atomic_add(bins + tl.load(x + at, mask=mask, other=0), 1, mask=mask)


@triton.jit
def running_sum(x, out, n, block: tl.constexpr):
    """Inclusive prefix sum of each row of n = block elements."""
    at = tl.program_id(0) * n + tl.arange(0, block)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def matmul(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, accumulator: tl.constexpr,
):  # fmt: skip
    """C = A B; every edge masked, so that asynchronous copies fill with zeros."""
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    total = tl.zeros((block_m, block_n), accumulator)
    for start in range(0, k, block_k):
        inner = start + tl.arange(0, block_k)
        x = tl.load(
            a + rows[:, None] * a_row + inner[None, :] * a_column,
            mask=(rows[:, None] < m) & (inner[None, :] < k),
            other=0,
        )
        y = tl.load(
            b + inner[:, None] * b_row + columns[None, :] * b_column,
            mask=(inner[:, None] < k) & (columns[None, :] < n),
            other=0,
        )
        total = tl.dot(x, y, total, out_dtype=accumulator)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=mask)


@triton.jit
def attention(q, k, v, out, length, scale, block_q: tl.constexpr, block_k: tl.constexpr, width: tl.constexpr):
    """Causal attention of one head a program (axis 1), online softmax."""
    head = tl.program_id(1) * length * width
    rows = tl.program_id(0) * block_q + tl.arange(0, block_q)
    inner = tl.arange(0, width)
    queries = tl.load(q + head + rows[:, None] * width + inner[None, :], mask=rows[:, None] < length, other=0)
    largest = tl.full((block_q,), -float("inf"), tl.float32)
    weight = tl.zeros((block_q,), tl.float32)
    total = tl.zeros((block_q, width), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * block_q, block_k):
        at = start + tl.arange(0, block_k)
        keys = tl.load(k + head + at[None, :] * width + inner[:, None], mask=at[None, :] < length, other=0)
        scores = tl.dot(queries, keys) * scale
        scores = tl.where((at[None, :] <= rows[:, None]) & (at[None, :] < length), scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        rescale = tl.exp2(largest - larger)
        weight = weight * rescale + tl.sum(p, 1)
        values = tl.load(v + head + at[:, None] * width + inner[None, :], mask=at[:, None] < length, other=0)
        total = tl.dot(p.to(values.dtype), values, total * rescale[:, None])
        largest = larger
    tl.store(out + head + rows[:, None] * width + inner[None, :], total / weight[:, None], mask=rows[:, None] < length)


@triton.jit
def matmul_tensor_map(
    a, b, c, k, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, add: tl.constexpr
):
    """C = A B^T (or C += A B^T) with A, B and C behind tensor maps."""
    row = tl.program_id(0) * block_m
    column = tl.program_id(1) * block_n
    total = tl.zeros((block_m, block_n), tl.float32)
    for start in range(0, k, block_k):
        total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
    if add:
        c.atomic_add([row, column], total)
    else:
        c.store([row, column], total.to(c.dtype))

"""What a kernel does, guessed from its name.

One ordered table: the first pattern found in the lower-cased name decides. Order carries the meaning: a
flash-attention kernel mentions softmax, a cuDNN batch-norm kernel mentions cudnn, a copy may be an
elementwise kernel with a copying functor.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from kdvfs_sim.core.kinds import Category

_PATTERNS: Final[tuple[tuple[Category, str], ...]] = (
    ("communication", r"nccl|rccl|msccl|nvshmem|multimem|cross_device_reduce|sendrecv"),
    ("communication", r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    ("optimizer", r"adam|adagrad|adadelta|rmsprop|sgd(?!e)|\blamb_|lamb(stage|functor)|fusedoptimizer"),
    ("copy", r"reshape_and_cache|kv_?cache_|copy_page|nchwtonhwc|nhwctonchw"),
    ("elementwise", r"rotary|\brope|compute\w*offsets|device_workspace|quantize_with_block|scalepacked"),
    ("attention", r"flash(?!infer)|fmha|attention|attn|\bmha|sdpa|paged|prefill|dot_do_o|convert_dq"),
    ("normalization", r"(layer|batch|group|instance|rms)_?norm|\bbn_|gammabeta|welford|rowwisemoments"),
    ("reduction", r"split_?k_?reduce|reduce_wgrad"),
    ("gemm", r"(?<!fb)gemm|gemv|gemk|xmma|cutlass|cublas|nvjet|cijk|ck_tile|_zn2ck|\bck::|split_?k"),
    ("gemm", r"matmul|(?<![a-z])(add|ba|b)?mm_|_(add|b)?mm(_|$)|triton_tem|epilogue::impl"),
    ("gemm", r"conv(?!er)|winograd|im2col|fft2d|[bfdw](prop|grad)_|cudnn|cask"),
    ("copy", r"memcpy|memset|copy|fill|transpose|permute|catarray|concat|_cat(_|$)|arange"),
    ("copy", r"gather|scatter|embedding|index|indices|bucketize|jagged|slice|grad_weight"),
    ("reduction", r"reduce|reduction|softmax|sum|mean|average|argmax|scan|sort|topk|norm(?!al)"),
    ("reduction", r"loss|pool|criterion|histogram|triton_(red|per)_"),
    ("elementwise", r"elementwise|multi_?tensor_?apply|triton_poi|pointwise|subtensorop|fp8|quant|cast"),
    ("elementwise", r"gelu|silu|swiglu|relu|sigmoid|tanh|activation|dropout"),
)
_TABLE: Final = tuple((category, re.compile(pattern)) for category, pattern in _PATTERNS)


@lru_cache(maxsize=65536)
def category_of(name: str) -> Category:
    """The category of a kernel name, "other" where no pattern of the table is found."""
    lowered = name.lower()
    return next((category for category, pattern in _TABLE if pattern.search(lowered)), "other")

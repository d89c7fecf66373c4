"""What a kernel does, guessed from its name.

One ordered table: the first pattern found in the lower-cased name decides. Order carries the meaning: a
``flash_fwd`` kernel mentions softmax, a cuDNN batch-norm kernel mentions cudnn, an Adam kernel is a
multi-tensor elementwise kernel.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from kdvfs_sim.core.kinds import Category

_PATTERNS: Final[tuple[tuple[Category, str], ...]] = (
    ("communication", r"nccl|rccl|msccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem"),
    ("optimizer", r"adam|lamb|adagrad|rmsprop|sgd|multi_?tensor_?apply|optimizer"),
    ("attention", r"flash|fmha|attention|attn|mha_|sdpa|paged_"),
    ("normalization", r"(layer|batch|group|instance|rms)_?norm|\bbn_|_norm|gammabeta|welford"),
    (
        "gemm",
        r"gemm|gemv|gemk|xmma|cutlass|cijk|matmul|_mm_|\bmm_|conv|winograd|fprop|dgrad|wgrad|cudnn|nvjet"
        r"|splitk|cublas|cask|^ck_",
    ),
    (
        "copy",
        r"copy|memcpy|memset|fill|transpose|permute|catarray|concat|_cat_|index|gather|scatter|embedding|arange",
    ),
    ("reduction", r"reduce|reduction|softmax|sum|mean|argmax|scan|sort|topk|norm|loss|pool"),
    ("elementwise", r"elementwise|pointwise|_poi_|gelu|silu|relu|sigmoid|tanh|dropout|add|mul|cast|quant"),
)
_TABLE: Final = tuple((category, re.compile(pattern)) for category, pattern in _PATTERNS)


@lru_cache(maxsize=65536)
def category_of(name: str) -> Category:
    """The category of a kernel name, "other" where no pattern of the table is found."""
    lowered = name.lower()
    return next((category for category, pattern in _TABLE if pattern.search(lowered)), "other")

"""Two small kernels as PTX, which the driver compiles for whatever GPU is there (Ampere or newer).

``sample`` sits on one multiprocessor and notes, at a fixed interval, the nanosecond timer and that
multiprocessor's cycle counter: two notes give the SM clock between them. ``burn`` multiplies matrices
of random numbers in registers, which draws enough power to make the governor act.
"""

from __future__ import annotations

from typing import Final

_N_CHAINS: Final = 8


def _burn() -> str:
    """The body of ``burn``: one hash for each operand register, then products into eight sums."""
    chains = range(_N_CHAINS)
    setup = []
    for i in range(6 * _N_CHAINS):
        # two halves of random sign and mantissa, of magnitude 1 to 2
        setup += [
            "mad.lo.u32 %h, %h, 1664525, 1013904223;",
            "and.b32 %v, %h, 0x83FF83FF;",
            f"or.b32 %m{i}, %v, 0x3C003C00;",
        ]
    zero = [f"mov.f32 %s{i}, 0f00000000;" for i in range(4 * _N_CHAINS)]
    product = []
    for i in chains:
        a = ", ".join(f"%m{6 * i + j}" for j in range(4))
        b = ", ".join(f"%m{6 * i + j}" for j in (4, 5))
        s = ", ".join(f"%s{4 * i + j}" for j in range(4))
        product.append(
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{s}}}, {{{a}}}, {{{b}}}, {{{s}}};"
        )
    total = [f"add.f32 %s0, %s0, %s{i};" for i in range(1, 4 * _N_CHAINS)]
    lines = [*setup, *zero, "LOOP:", *product, *product]
    lines += ["add.u32 %i, %i, 1;", "setp.lt.u32 %more, %i, %n;", "@%more bra LOOP;", *total]
    return "\n    ".join(lines)


PTX: Final = f"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry sample(.param .u64 out, .param .u32 n, .param .u64 interval_ns)
{{
    .reg .pred %more, %early;
    .reg .b32 %i, %n;
    .reg .b64 %out, %interval, %due, %t, %c;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u32 %n, [n];
    ld.param.u64 %interval, [interval_ns];
    mov.u32 %i, 0;
    mov.u64 %due, %globaltimer;
WAIT:
    mov.u64 %t, %globaltimer;
    setp.lt.u64 %early, %t, %due;
    @%early bra WAIT;
    mov.u64 %c, %clock64;
    st.global.u64 [%out], %t;
    st.global.u64 [%out+8], %c;
    add.u64 %out, %out, 16;
    add.u64 %due, %t, %interval;
    add.u32 %i, %i, 1;
    setp.lt.u32 %more, %i, %n;
    @%more bra WAIT;
    ret;
}}

.visible .entry burn(.param .u64 out, .param .u32 n)
{{
    .reg .pred %more, %never;
    .reg .b32 %i, %n, %h, %v, %c, %m<{6 * _N_CHAINS}>;
    .reg .b64 %out;
    .reg .f32 %s<{4 * _N_CHAINS}>;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u32 %n, [n];
    mov.u32 %i, 0;
    mov.u32 %h, %tid.x;
    mov.u32 %c, %ctaid.x;
    mad.lo.u32 %h, %c, 1024, %h;
    mul.lo.u32 %h, %h, 0x9E3779B1;
    {_burn()}
    setp.eq.f32 %never, %s0, 0f7F7FFFFF;
    @%never st.global.f32 [%out], %s0;
    ret;
}}
"""

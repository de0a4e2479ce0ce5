"""The size of numbers in an HLO module."""

from collections.abc import Mapping

# Bits on a device, by the numbers of PrimitiveType in
# https://github.com/openxla/xla/blob/main/xla/xla_data.proto. A host has whole bytes for each.
ELEMENT_BITS: Mapping[int, int] = {
    **dict.fromkeys((30, 31), 1),  # s1, u1
    **dict.fromkeys((26, 27), 2),  # s2, u2
    **dict.fromkeys((21, 22, 32), 4),  # s4, u4, f4e2m1fn
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 8),  # pred, s8, u8, f8 of each kind
    **dict.fromkeys((3, 7, 10, 16), 16),  # s16, u16, f16, bf16
    **dict.fromkeys((4, 8, 11), 32),  # s32, u32, f32
    **dict.fromkeys((5, 9, 12, 15), 64),  # s64, u64, f64, c64
    18: 128,  # c128
}

//! Element values that find mistakes: NaNs with payloads, infinities, signed zeros, subnormals,
//! overflow, ties.

use distcollective::DataType;

pub use crate::random::Random;

impl Random {
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Bit patterns with special rules.
fn special(data_type: DataType) -> &'static [u64] {
    match data_type {
        DataType::Float32 => &[
            0x0000_0000,
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc1_2345,
            0x7f80_0001,
            0x0000_0001,
            0x8000_0001,
            0x007f_ffff,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x3f80_0000,
            0x3380_0000,
            0x4b80_0000,
        ],
        DataType::Float16 => &[
            0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe55, 0x7c01, 0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x3c00,
            0x1000, 0x6800,
        ],
        DataType::Bfloat16 => &[
            0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc5, 0x7f81, 0x0001, 0x8001, 0x007f, 0x7f7f, 0xff7f, 0x3f80,
            0x3b80, 0x4380,
        ],
        DataType::Float8E4M3 => &[0x00, 0x80, 0x7f, 0xff, 0x01, 0x81, 0x07, 0x7e, 0xfe, 0x38, 0x08, 0x58],
        DataType::Float8E5M2 => &[0x00, 0x80, 0x7c, 0xfc, 0x7d, 0x7e, 0xff, 0x01, 0x81, 0x03, 0x7b, 0xfb, 0x3c],
        DataType::Int64 => &[0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 3, 0xffff_ffff_ffff_fff9],
        DataType::Int32 => &[0, 1, 0xffff_ffff, 0x8000_0000, 0x7fff_ffff, 3, 0xffff_fff9],
        DataType::Int8 | DataType::Uint8 => &[0, 1, 0xff, 0x80, 0x7f, 3, 0xf9],
        DataType::Bool => &[0, 1, 2, 0x80, 0xff],
        DataType::Float64 => &[
            0,
            1 << 63,
            0x7ff0 << 48,
            0xfff0 << 48,
            0x7ff8 << 48,
            0xfff8_1234_5678_9abc,
            0x7ff0_0000_0000_0001,
            1,
            (1 << 63) + 1,
            0x000f_ffff_ffff_ffff,
            0x7fef_ffff_ffff_ffff,
            0xffef_ffff_ffff_ffff,
            0x3ff0 << 48,
            0x3ca0 << 48,
            0x4340 << 48,
        ],
        DataType::Uint32 => &[0, 1, 0xffff_ffff, 0x8000_0000, 0x7fff_ffff, 3, 0xffff_fff9],
        DataType::Uint64 => &[0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 3, 0xffff_ffff_ffff_fff9],
        other => panic!("{other} is new"),
    }
}

/// Bit patterns of ordinary size, whose sums neither overflow nor vanish.
pub fn ordinary(data_type: DataType, random: &mut Random) -> u64 {
    let r = random.next();
    match data_type {
        DataType::Float32 => (r & 0x807f_ffff) | (120 + (r >> 40) % 16) << 23,
        DataType::Float16 => (r & 0x83ff) | (12 + (r >> 40) % 8) << 10,
        DataType::Bfloat16 => (r & 0x807f) | (120 + (r >> 40) % 16) << 7,
        DataType::Float8E4M3 => (r & 0x87) | (4 + (r >> 40) % 7) << 3,
        DataType::Float8E5M2 => (r & 0x83) | (12 + (r >> 40) % 8) << 2,
        DataType::Int64 => (r as i64 >> 40) as u64,
        DataType::Int32 => r & 0xffff_ffff,
        DataType::Int8 | DataType::Uint8 => r & 0xff,
        DataType::Bool => r & 1,
        // No whole float32.
        DataType::Float64 => (r & 0x800f_ffff_ffff_ffff) | (1020 + (r >> 55) % 8) << 52,
        DataType::Uint32 => r & 0xffff_ffff,
        DataType::Uint64 => r,
        other => panic!("{other} is new"),
    }
}

/// The elements of one rank's tensor as bits: a third of them special.
pub fn elements(data_type: DataType, count: usize, seed: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let special = special(data_type);
    (0..count)
        .map(|_| if random.below(3) == 0 { *random.pick(special) } else { ordinary(data_type, &mut random) })
        .collect()
}

/// Elements' bits as bytes in memory.
pub fn to_bytes(data_type: DataType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let len = data_type.byte_len();
    let mut bytes = Vec::new();
    for element in bits {
        bytes.extend_from_slice(&element.to_le_bytes()[..len]);
    }
    bytes
}

/// Bytes in memory as elements' bits.
pub fn to_bits(data_type: DataType, bytes: &[u8]) -> Vec<u64> {
    let widen = |chunk: &[u8]| {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(padded)
    };
    bytes.chunks(data_type.byte_len()).map(widen).collect()
}

//! How much the arithmetic of another backend may differ from the host's: the bounds that the
//! crate's documentation gives under "On GPUs".

use distcollective::{CollectiveOperation, DataType, Rank, ReduceOperation};

use crate::cases::Case;
use crate::reference::{Bits, to_f64};
use crate::values::{to_bits, to_bytes};

/// Replaces elements of `expected` by those of `got` if the difference is within the bounds.
pub fn accept(case: &Case, inputs: &[Bits], rank: Rank, expected: &mut [u8], got: &[u8]) {
    let (Some(reduce_op), true) = (case.reduce_op, case.data_type.is_float()) else { return };
    if inputs.len() == 1 {
        return;
    }
    let wanted = to_bits(case.data_type, expected);
    let given = to_bits(case.data_type, got);
    // The index in the inputs of the first element of the output.
    let first = match case.operation {
        CollectiveOperation::ReduceScatter => {
            let members = case.members(rank).expect("the rank has an output");
            wanted.len() * members.iter().position(|member| *member == rank).expect("a member")
        }
        _ => 0,
    };
    let accepted = wanted.iter().zip(&given).enumerate().map(|(i, (&want, &got))| {
        let operands =
            inputs.iter().map(|input| to_f64(case.data_type, input.as_slice().expect("row-major")[first + i]));
        let [wide_want, wide_got] = [want, got].map(|bits| to_f64(case.data_type, bits));
        let operands: Vec<f64> = operands.collect();
        if is_close(reduce_op, case.data_type, &operands, wide_want, wide_got) { got } else { want }
    });
    let accepted: Vec<u64> = accepted.collect();
    expected.copy_from_slice(&to_bytes(case.data_type, accepted));
}

pub fn is_close(reduce_op: ReduceOperation, data_type: DataType, operands: &[f64], want: f64, got: f64) -> bool {
    let n = operands.len() as f64;
    let Format { epsilon, smallest, smallest_normal, largest } = format(data_type);
    match reduce_op {
        // Any NaN, and any zero.
        ReduceOperation::Max | ReduceOperation::Min => want == got || want.is_nan() && got.is_nan(),
        ReduceOperation::Sum | ReduceOperation::Avg => {
            let sum: f64 = operands.iter().map(|x| x.abs()).sum();
            // There is no bound if the sum of the magnitudes is not below the largest number.
            let is_bounded = sum < largest;
            !is_bounded || (want - got).abs() <= n * (epsilon * sum + smallest)
        }
        ReduceOperation::Prod => {
            let is_ordinary = |x: f64| x.abs() < largest && x.abs() > smallest_normal;
            // There is none if an intermediate product overflows or underflows in some order.
            let (small, large): (Vec<f64>, Vec<f64>) = operands.iter().map(|x| x.abs()).partition(|x| *x < 1.0);
            let (greatest, least): (f64, f64) = (large.iter().product(), small.iter().product());
            if !is_ordinary(greatest) || !is_ordinary(least) {
                return true;
            }
            (want - got).abs() <= 2.0 * n * epsilon * want.abs()
        }
        other => panic!("{other} is new"),
    }
}

/// A floating-point format.
struct Format {
    /// The distance from 1 to the next number.
    epsilon: f64,
    smallest: f64,
    smallest_normal: f64,
    largest: f64,
}

fn format(data_type: DataType) -> Format {
    let (mantissa, least_exponent, largest) = match data_type {
        DataType::Float64 => (52, -1022, f64::MAX),
        DataType::Float32 => (23, -126, f64::from(f32::MAX)),
        DataType::Float16 => (10, -14, 65504.0),
        DataType::Bfloat16 => (7, -126, f64::from(f32::from_bits(0x7f7f_0000))),
        DataType::Float8E4M3 => (3, -6, 448.0),
        DataType::Float8E5M2 => (2, -14, 57344.0),
        other => panic!("{other} is not a float"),
    };
    let epsilon = 2f64.powi(-mantissa);
    let smallest_normal = 2f64.powi(least_exponent);
    Format { epsilon, smallest: epsilon * smallest_normal, smallest_normal, largest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_are_close_and_larger_ones_are_not() {
        let sum = |want: f32, got: f32| {
            is_close(ReduceOperation::Sum, DataType::Float32, &[1.0, 1.0], want.into(), got.into())
        };
        assert!(sum(2.0, 2.0) && sum(2.0, 2.0f32.next_up()));
        assert!(!sum(2.0, 2.00001) && !sum(2.0, f32::NAN) && !sum(2.0, f32::INFINITY));
        let product = |got| is_close(ReduceOperation::Prod, DataType::Float8E4M3, &[2.0, 3.0], 6.0, got);
        assert!(product(6.5) && !product(10.0) && !product(-6.0) && !product(f64::NAN));
        let max = |want, got| is_close(ReduceOperation::Max, DataType::Float16, &[0.0, -0.0], want, got);
        assert!(max(0.0, -0.0) && max(f64::NAN, -f64::NAN) && !max(0.0, 1.0) && !max(1.0, f64::NAN));
    }
}

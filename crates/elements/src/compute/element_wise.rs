//! Element-wise arithmetic of two tensors, which are broadcast to one shape.

use super::float_env;
use super::operand::{Integer, Operand, add, max, min, multiply};
use super::vector::{self, Instructions, LANES, VectorKernel};
use crate::data_type::DataType;
use crate::element::{Bool, ElementWiseOperation, F8E4M3, F8E5M2, bf16, f16};
use crate::layout::Layout;

/// Combines the elements of two tensors, as the layout broadcasts them, into `target`. The
/// arithmetic is that of a reduction over two ranks.
///
/// # Safety
///
/// Each source is valid for reads, and the target for writes, of the elements of `data_type` that
/// the layout says, aligned to its size. Nothing else writes them during the call, and they do not
/// overlap.
pub unsafe fn element_wise(
    operation: ElementWiseOperation,
    data_type: DataType,
    layout: &Layout<2>,
    sources: [*const u8; 2],
    target: *mut u8,
) {
    let buffers = PairBuffers { layout, sources, target };
    match data_type {
        DataType::Float32 => floats::<f32>(operation, buffers),
        DataType::Float16 => floats::<f16>(operation, buffers),
        DataType::Bfloat16 => floats::<bf16>(operation, buffers),
        DataType::Float8E4M3 => floats::<F8E4M3>(operation, buffers),
        DataType::Float8E5M2 => floats::<F8E5M2>(operation, buffers),
        DataType::Int64 => integers::<i64>(operation, buffers),
        DataType::Int32 => integers::<i32>(operation, buffers),
        DataType::Int8 => integers::<i8>(operation, buffers),
        DataType::Uint8 => integers::<u8>(operation, buffers),
        DataType::Bool => bools(operation, buffers),
        DataType::Float64 | DataType::Uint32 | DataType::Uint64 => unreachable!("no layer has {data_type}"),
    }
}

/// What [`element_wise`] gets, which is as it asks for.
#[derive(Clone, Copy)]
struct PairBuffers<'a> {
    layout: &'a Layout<2>,
    sources: [*const u8; 2],
    target: *mut u8,
}

/// Computes in float32, and rounds once to the element's type.
fn floats<T: Operand<Value = f32>>(operation: ElementWiseOperation, buffers: PairBuffers<'_>) {
    float_env::with_default(|| match operation {
        ElementWiseOperation::Sum => run::<T>(buffers, add),
        ElementWiseOperation::Prod => run::<T>(buffers, multiply),
        ElementWiseOperation::Max => run::<T>(buffers, max),
        ElementWiseOperation::Min => run::<T>(buffers, min),
        ElementWiseOperation::Sub => run::<T>(buffers, |a, b| a - b),
        ElementWiseOperation::Div => run::<T>(buffers, |a, b| a / b),
    });
}

fn integers<T: Integer>(operation: ElementWiseOperation, buffers: PairBuffers<'_>) {
    match operation {
        ElementWiseOperation::Sum => run::<T>(buffers, T::add),
        ElementWiseOperation::Prod => run::<T>(buffers, T::multiply),
        ElementWiseOperation::Max => run::<T>(buffers, T::max),
        ElementWiseOperation::Min => run::<T>(buffers, T::min),
        ElementWiseOperation::Sub => run::<T>(buffers, T::subtract),
        ElementWiseOperation::Div => run::<T>(buffers, T::quotient),
    }
}

/// Results are 0 or 1. The network refuses differences and quotients of bool.
fn bools(operation: ElementWiseOperation, buffers: PairBuffers<'_>) {
    match operation {
        ElementWiseOperation::Sum | ElementWiseOperation::Max => run::<Bool>(buffers, u8::max),
        ElementWiseOperation::Prod
        | ElementWiseOperation::Min
        | ElementWiseOperation::Sub
        | ElementWiseOperation::Div => run::<Bool>(buffers, u8::min),
    }
}

fn run<T: Operand>(buffers: PairBuffers<'_>, combine: impl Fn(T::Value, T::Value) -> T::Value) {
    let PairBuffers { layout, sources, target } = buffers;
    vector::run_compact(Pairs::<T, _> {
        layout,
        sources: sources.map(<*const u8>::cast),
        target: target.cast(),
        combine,
    });
}

/// The values of a block of a row, which begins at element `start` or repeats the first value.
///
/// # Safety
///
/// If the step is not 0, the row has the elements of the block.
#[inline(always)]
unsafe fn block<T: Operand, I: Instructions>(
    row: *const T,
    start: usize,
    step: isize,
    first: T::Value,
) -> [T::Value; LANES] {
    match step {
        0 => [first; LANES],
        // SAFETY: the caller's promise.
        _ => T::load::<I>(&unsafe { row.add(start).cast::<[T; LANES]>().read() }),
    }
}

/// Combines the elements of two sources, row by row.
struct Pairs<'a, T, C> {
    layout: &'a Layout<2>,
    sources: [*const T; 2],
    target: *mut T,
    combine: C,
}

impl<T: Operand, C: Fn(T::Value, T::Value) -> T::Value> VectorKernel for Pairs<'_, T, C> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        // Along a row, a source steps from element to element, or repeats one.
        let (len, steps) = self.layout.row();
        let in_blocks = len / LANES * LANES;
        let mut target = self.target;
        for starts in self.layout.rows() {
            let rows = [0, 1].map(|side| self.sources[side].wrapping_offset(starts[side]));
            // SAFETY: the caller of `element_wise` promises the elements that the layout reaches;
            // the row has at least one.
            let firsts = rows.map(|row| unsafe { *row }.load_one());
            for start in (0..in_blocks).step_by(LANES) {
                // SAFETY: as above; the block is within the row.
                let (mut values, others) = unsafe {
                    (
                        block::<T, I>(rows[0], start, steps[0], firsts[0]),
                        block::<T, I>(rows[1], start, steps[1], firsts[1]),
                    )
                };
                for (value, other) in values.iter_mut().zip(others) {
                    *value = (self.combine)(*value, other);
                }
                let results = T::store::<I>(&values);
                // SAFETY: the block is within the target's row.
                unsafe { target.add(start).cast::<[T; LANES]>().write(results) };
            }
            for i in in_blocks..len {
                // SAFETY: as above; `i` is within the row.
                let [a, b] = [0, 1].map(|side| unsafe { *rows[side].offset(steps[side] * i as isize) }.load_one());
                // SAFETY: `i` is within the target's row.
                unsafe { *target.add(i) = T::store_one((self.combine)(a, b)) };
            }
            target = target.wrapping_add(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Typed;
    use crate::shape::Shape;

    fn computed<T: Typed>(operation: ElementWiseOperation, [a, b]: [(&[T], &[usize]); 2]) -> Vec<T> {
        let layout = Layout::broadcast(&Shape::new(a.1).expect("a shape"), &Shape::new(b.1).expect("a shape"));
        let mut output = vec![T::default(); layout.element_count()];
        let sources = [a.0, b.0].map(|elements| elements.as_ptr().cast());
        // SAFETY: the slices have the elements of their shapes, and the vector those of the output.
        unsafe { element_wise(operation, T::DATA_TYPE, &layout, sources, output.as_mut_ptr().cast()) };
        output
    }

    /// Rows that are longer than a block, that a block divides, and that are shorter.
    #[test]
    fn rows_and_columns_of_every_length_are_broadcast() {
        for len in [1, 2, 63, 64, 65, 128, 200] {
            let rows: Vec<i32> = (0..3 * len as i32).collect();
            let (row, column) = (&rows[..len], [1000, 2000, 3000]);
            let at = |i: usize| (i / len, i % len);
            let expected = |value: &dyn Fn(usize, usize) -> i32| -> Vec<i32> {
                (0..3 * len).map(|i| value(at(i).0, at(i).1)).collect()
            };
            let sub = ElementWiseOperation::Sub;
            assert_eq!(
                computed(sub, [(&rows, &[3, len]), (row, &[1, len])]),
                expected(&|r, c| rows[r * len + c] - row[c])
            );
            assert_eq!(
                computed(sub, [(&column, &[3, 1]), (&rows, &[3, len])]),
                expected(&|r, c| column[r] - rows[r * len + c])
            );
            assert_eq!(computed(sub, [(&column, &[3, 1]), (row, &[1, len])]), expected(&|r, c| column[r] - row[c]));
            assert_eq!(computed(sub, [(&rows, &[3 * len]), (&[7], &[1])]), expected(&|r, c| rows[r * len + c] - 7));
        }
    }

    #[test]
    fn integers_wrap_and_a_division_by_zero_gives_zero() {
        let a = [i8::MIN, i8::MIN, 7, -7, 100, 0];
        let b = [-1, 0, -2, 2, 100, 0];
        let result = |operation| computed(operation, [(&a[..], &[6]), (&b[..], &[6])]);
        assert_eq!(result(ElementWiseOperation::Div), [i8::MIN, 0, -3, -3, 1, 0]);
        assert_eq!(result(ElementWiseOperation::Sub), [-127, i8::MIN, 9, -9, 0, 0]);
        assert_eq!(result(ElementWiseOperation::Prod), [i8::MIN, 0, -14, -14, 16, 0]);
        assert_eq!(computed(ElementWiseOperation::Sub, [(&[1u8], &[1]), (&[2u8], &[1])]), [255]);
        assert_eq!(computed(ElementWiseOperation::Div, [(&[i64::MIN], &[]), (&[-1i64], &[])]), [i64::MIN]);
    }

    #[test]
    fn floats_divide_as_ieee_754_says_and_nan_is_the_quiet_one() {
        let a = [1.0f32, -1.0, 0.0, f32::NAN, f32::MAX];
        let b = [0.0f32, 0.0, -0.0, 1.0, f32::MIN_POSITIVE];
        let quotients = computed(ElementWiseOperation::Div, [(&a[..], &[5]), (&b[..], &[5])]);
        let bits: Vec<u32> = quotients.iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7fc0_0000, 0x7f80_0000]);
        let largest = computed(ElementWiseOperation::Max, [(&[f32::NAN, -0.0], &[2]), (&[-1.0f32, 0.0], &[2])]);
        assert_eq!(largest.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [(-1.0f32).to_bits(), 0]);
    }
}

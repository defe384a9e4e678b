//! How the elements of tensors are reached in the order of an output.

use crate::shape::{MAX_DIMS, Shape};

/// The dimensions of an output, and for each of `N` inputs how many elements apart neighbours along
/// each dimension are. Dimensions of 1 are left out, and neighbouring dimensions are joined where
/// every input allows it.
#[derive(Clone, Copy, Debug)]
pub struct Layout<const N: usize> {
    dim_count: usize,
    dims: [usize; MAX_DIMS],
    strides: [[isize; MAX_DIMS]; N],
}

impl<const N: usize> Layout<N> {
    const ONE_ELEMENT: Self = Layout { dim_count: 0, dims: [1; MAX_DIMS], strides: [[0; MAX_DIMS]; N] };

    /// Adds a dimension, which varies faster than those before it.
    fn push(&mut self, len: usize, strides: [isize; N]) {
        let last = self.dim_count.wrapping_sub(1);
        if len == 1 {
            return;
        }
        let joins = |input: usize| self.strides[input][last] == len as isize * strides[input];
        let at = if self.dim_count > 0 && (0..N).all(joins) {
            self.dims[last] *= len;
            last
        } else {
            self.dims[self.dim_count] = len;
            self.dim_count += 1;
            self.dim_count - 1
        };
        for (to, stride) in self.strides.iter_mut().zip(strides) {
            to[at] = stride;
        }
    }

    /// The elements of a row, which is the last dimension, and the strides along it.
    pub fn row(&self) -> (usize, [isize; N]) {
        match self.dim_count.checked_sub(1) {
            Some(last) => (self.dims[last], self.strides.map(|strides| strides[last])),
            None => (1, [1; N]),
        }
    }

    /// Where each row begins in every input, in the order of the output.
    pub fn rows(&self) -> Rows<'_, N> {
        Rows { layout: self, index: [0; MAX_DIMS], next: Some([0; N]) }
    }

    /// The dimensions of the output: at least 2 each. There is none if it has one element.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.dim_count]
    }

    /// The strides of an input, in elements.
    pub fn strides(&self, input: usize) -> &[isize] {
        &self.strides[input][..self.dim_count]
    }

    /// The number of elements of the output.
    pub fn element_count(&self) -> usize {
        self.dims().iter().product()
    }
}

impl Layout<1> {
    /// Joins adjacent elements that stay adjacent to longer ones: of 16 bytes at most, and of a
    /// length that divides `alignment`. Gives their length.
    pub fn widen(&mut self, element_bytes: usize, alignment: usize) -> usize {
        let Some(last) = self.dim_count.checked_sub(1) else { return element_bytes };
        let [strides] = &mut self.strides;
        if strides[last] != 1 {
            return element_bytes;
        }
        let fits = |factor: &usize| {
            let is_multiple = |stride: &isize| stride.unsigned_abs().is_multiple_of(*factor);
            self.dims[last].is_multiple_of(*factor) && strides[..last].iter().all(is_multiple)
        };
        let lengths = [16, 8, 4, 2].into_iter().filter(|bytes| alignment.is_multiple_of(*bytes));
        let mut factors = lengths.filter(|bytes| *bytes > element_bytes).map(|bytes| bytes / element_bytes);
        let Some(factor) = factors.find(fits) else { return element_bytes };
        self.dims[last] /= factor;
        strides[..last].iter_mut().for_each(|stride| *stride /= factor as isize);
        if self.dims[last] == 1 {
            self.dim_count = last;
        }
        element_bytes * factor
    }

    /// The layout as matrices, if rows have their elements further apart than another dimension
    /// has.
    pub(crate) fn matrices(&self) -> Option<Matrices> {
        let last = self.dim_count.checked_sub(1)?;
        let [strides] = &self.strides;
        let across = (0..last).min_by_key(|&dim| strides[dim].unsigned_abs())?;
        if strides[across].unsigned_abs() >= strides[last].unsigned_abs() {
            return None;
        }
        let pitch_of = |dim: usize| self.dims[dim + 1..=last].iter().product::<usize>();
        let mut places = Layout::ONE_ELEMENT;
        for dim in (0..last).filter(|&dim| dim != across) {
            places.push(self.dims[dim], [strides[dim], pitch_of(dim) as isize]);
        }
        let dims = [across, last].map(|dim| self.dims[dim]);
        Some(Matrices { places, dims, strides: [strides[across], strides[last]], pitch: pitch_of(across) })
    }
}

/// A gathering as matrices that are transposed: the neighbours of the input are in columns.
pub(crate) struct Matrices {
    /// Where the first element of each matrix is, in the input and in the output.
    pub(crate) places: Layout<2>,
    /// The number of rows of a matrix in the output, and their length.
    pub(crate) dims: [usize; 2],
    /// How far apart in the input neighbours in a column and in a row are.
    pub(crate) strides: [isize; 2],
    /// How far apart in the output rows are.
    pub(crate) pitch: usize,
}

/// The iterator of [`Layout::rows`].
#[derive(Clone, Debug)]
pub struct Rows<'a, const N: usize> {
    layout: &'a Layout<N>,
    index: [usize; MAX_DIMS],
    next: Option<[isize; N]>,
}

impl<const N: usize> Iterator for Rows<'_, N> {
    type Item = [isize; N];

    fn next(&mut self) -> Option<[isize; N]> {
        let row = self.next?;
        let mut next = row;
        for dim in (0..self.layout.dim_count.saturating_sub(1)).rev() {
            let len = self.layout.dims[dim];
            self.index[dim] += 1;
            let is_over = self.index[dim] == len;
            let steps = if is_over { 1 - len as isize } else { 1 };
            for (offset, strides) in next.iter_mut().zip(&self.layout.strides) {
                *offset += steps * strides[dim];
            }
            if !is_over {
                self.next = Some(next);
                return Some(row);
            }
            self.index[dim] = 0;
        }
        self.next = None;
        Some(row)
    }
}

/// The strides of a tensor without gaps. The tensor has at least one element.
fn strides_of(shape: &Shape) -> [isize; MAX_DIMS] {
    let dims = shape.as_slice();
    let mut strides = [1; MAX_DIMS];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i] as isize;
    }
    strides
}

impl Layout<1> {
    /// A tensor of a shape with its dimensions reordered: dimension `i` of the output is dimension
    /// `permutation[i]` of the input. The tensor has at least one element.
    pub fn transposed(shape: &Shape, permutation: &[u8]) -> Self {
        let strides = strides_of(shape);
        let mut layout = Layout::ONE_ELEMENT;
        for dim in permutation.iter().map(|&dim| usize::from(dim)) {
            layout.push(shape.as_slice()[dim], [strides[dim]]);
        }
        layout
    }

    /// A part of a tensor of a shape, and the index of its first element. Along each dimension it
    /// has `size` elements from `start` on, each `stride` after the one before. All of them are
    /// inside the tensor, and there is at least one.
    pub fn sliced(shape: &Shape, start: &[i64], size: &[i64], stride: &[i64]) -> (Self, usize) {
        let strides = strides_of(shape);
        let mut layout = Layout::ONE_ELEMENT;
        let mut first = 0;
        for dim in 0..shape.dim_count() {
            // The stride of a single element may be any number.
            let step = if size[dim] == 1 { 0 } else { stride[dim] as isize * strides[dim] };
            layout.push(size[dim] as usize, [step]);
            first += start[dim] as usize * strides[dim] as usize;
        }
        (layout, first)
    }
}

impl Layout<2> {
    /// Two tensors that are broadcast to one output: a dimension of 1 is repeated as often as the
    /// other tensor's says. The output has at least one element.
    pub fn broadcast(a: &Shape, b: &Shape) -> Self {
        let (strides, dims) = ([a, b].map(strides_of), [a, b].map(Shape::as_slice));
        let mut layout = Layout::ONE_ELEMENT;
        for dim in 0..a.dim_count() {
            let step = |input: usize| if dims[input][dim] == 1 { 0 } else { strides[input][dim] };
            layout.push(dims[0][dim].max(dims[1][dim]), [step(0), step(1)]);
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).expect("a shape")
    }

    /// The index in an input of each element of the output.
    fn indices<const N: usize>(layout: &Layout<N>, input: usize) -> Vec<isize> {
        let (len, steps) = layout.row();
        let row = |start: [isize; N]| (0..len as isize).map(move |i| start[input] + i * steps[input]);
        layout.rows().flat_map(row).collect()
    }

    #[test]
    fn dimensions_are_joined_where_every_input_allows_it() {
        let whole = Layout::broadcast(&shape(&[2, 3, 4]), &shape(&[2, 3, 4]));
        assert_eq!((whole.dims(), whole.row()), (&[24][..], (24, [1, 1])));
        let bias = Layout::broadcast(&shape(&[5, 1, 3, 4]), &shape(&[1, 1, 3, 4]));
        assert_eq!((bias.dims(), bias.strides(0), bias.strides(1)), (&[5, 12][..], &[12, 1][..], &[0, 1][..]));
        let both = Layout::broadcast(&shape(&[2, 1]), &shape(&[1, 3]));
        assert_eq!((indices(&both, 0), indices(&both, 1)), (vec![0, 0, 0, 1, 1, 1], vec![0, 1, 2, 0, 1, 2]));
        let kept = Layout::transposed(&shape(&[2, 3, 4, 5]), &[1, 0, 2, 3]);
        assert_eq!((kept.dims(), kept.strides(0)), (&[3, 2, 20][..], &[20, 60, 1][..]));
    }

    #[test]
    fn a_slice_has_any_strides() {
        let taken = |dims: &[usize], start: &[i64], size: &[i64], stride: &[i64]| {
            let (layout, first) = Layout::sliced(&shape(dims), start, size, stride);
            indices(&layout, 0).into_iter().map(|index| index + first as isize).collect::<Vec<_>>()
        };
        assert_eq!(taken(&[3, 4], &[1, 1], &[2, 2], &[1, 2]), [5, 7, 9, 11]);
        assert_eq!(taken(&[2, 3], &[1, 2], &[2, 3], &[-1, -1]), [5, 4, 3, 2, 1, 0]);
        assert_eq!(taken(&[2, 3], &[1, 0], &[3, 2], &[0, 2]), [3, 5, 3, 5, 3, 5]);
        assert_eq!(taken(&[7], &[6], &[1], &[i64::MAX]), [6]);
        assert_eq!(taken(&[], &[], &[], &[]), [0]);
        assert_eq!(Layout::sliced(&shape(&[2, 3]), &[1, 2], &[2, 3], &[-1, -1]).0.dims(), [6]);
    }
}

//! The layers of random networks that compute on each rank alone: how they are chosen, added, and
//! what they mean.

use distcollective::network::{ElementWiseOperation, Shuffle, TensorId};
use distcollective::{DataType, Network, Result};
use ndarray::{ArrayD, Axis, IxDyn, concatenate};

use crate::reference::{self, Bits};

/// A tensor's type, and its dimensions with few and with many rows.
pub type Described = (DataType, [Vec<usize>; 2]);

/// A layer and its attributes.
#[derive(Clone, Debug)]
pub enum Local {
    Shuffle { first: Option<Vec<u8>>, reshape: Option<Vec<i64>>, second: Option<Vec<u8>> },
    Cast(DataType),
    ElementWise(ElementWiseOperation),
    Concatenation(usize),
    Slice { start: Vec<i64>, size: Vec<i64>, stride: Vec<i64> },
    Identity,
}

/// The most elements of a tensor that is joined from others.
const MAX_ELEMENTS: usize = 2000;

pub fn pick<T: Copy>(from: &[T], choice: u64, shift: u32) -> T {
    from[(choice >> shift) as usize % from.len()]
}

/// A shuffle that moves nothing.
pub const READ: Local = Local::Shuffle { first: None, reshape: None, second: None };

pub fn shuffle((_, [dims, _]): &Described, choice: u64) -> Local {
    let reversed = |len: usize| (0..len as u8).rev().collect::<Vec<_>>();
    let rotated = |len: usize| (0..len).map(|d| ((d + 1) % len) as u8).collect::<Vec<_>>();
    let first = match choice % 3 {
        0 => None,
        1 => Some(reversed(dims.len())),
        _ => Some(rotated(dims.len())),
    };
    let (reshape, len): (Option<Vec<i64>>, usize) = match (choice >> 8) % 4 {
        0 => (Some(vec![-1]), 1),
        1 => (Some(vec![0, -1]), 2),
        2 => (Some(vec![-1, 1, 1]), 3),
        _ => (None, dims.len()),
    };
    let second = match (choice >> 16) % 3 {
        0 => Some(reversed(len)),
        1 => Some(rotated(len)),
        _ => None,
    };
    // A reshape that copies dimension 0 and infers the rest needs a dimension to copy.
    Local::Shuffle { first, reshape, second }
}

/// A slice with strides of all signs, whose indices are inside the tensor with few and with many
/// rows.
pub fn slice((_, [few, many]): &Described, choice: u64) -> Local {
    let (mut start, mut size, mut stride) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, (&few, &many)) in few.iter().zip(many).enumerate() {
        let (last, bits) = (few.min(many) as i64 - 1, choice.rotate_right(7 * dim as u32));
        let (from, step) = (pick(&[0, 0, last / 3, last], bits, 0), pick(&[1, 1, -1, 2, -3, 0], bits, 8));
        let most = match step {
            0 => 3,
            1.. => (last - from) / step + 1,
            _ => from / -step + 1,
        };
        start.push(from);
        size.push(pick(&[most, most, 1, most / 2 + 1], bits, 16).min(most));
        stride.push(step);
    }
    Local::Slice { start, size, stride }
}

pub fn element_wise(data_type: DataType, choice: u64) -> Local {
    let operation = pick(&ElementWiseOperation::ALL, choice, 0);
    Local::ElementWise(if operation.applies_to(data_type) { operation } else { ElementWiseOperation::Max })
}

/// The dimensions of a constant that can be combined with a tensor: each is the tensor's, or 1
/// where that is dynamic.
pub fn broadcastable((_, [few, many]): &Described, choice: u64) -> Vec<usize> {
    let dim = |(dim, (&few, &many)): (usize, (&usize, &usize))| {
        if few == many && choice >> (24 + dim) & 1 == 0 { few } else { 1 }
    };
    few.iter().zip(many).enumerate().map(dim).collect()
}

/// Tensors with which this one can be combined element by element.
pub fn combinable(tensors: &[Described], with: usize) -> Vec<usize> {
    let fits = |(a, b): (&Vec<usize>, &Vec<usize>)| {
        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| a == b || a == 1 || b == 1)
    };
    let (data_type, shapes) = &tensors[with];
    let is_small = |other: &[Vec<usize>; 2]| {
        shapes.iter().zip(other).all(|(a, b)| a.iter().zip(b).map(|(a, b)| a.max(b)).product::<usize>() <= MAX_ELEMENTS)
    };
    let all = tensors.iter().enumerate();
    let found = all.filter(|(_, (other, b))| other == data_type && shapes.iter().zip(b).all(fits) && is_small(b));
    found.map(|(index, _)| index).collect()
}

/// A dimension, and one to three tensors that can be joined along it.
pub fn joinable(tensors: &[Described], with: usize, choice: u64) -> (usize, Vec<usize>) {
    let (data_type, shapes) = &tensors[with];
    let axis = choice as usize % shapes[0].len();
    let fits = |(a, b): (&Vec<usize>, &Vec<usize>)| {
        a.len() == b.len() && a.iter().zip(b).enumerate().all(|(dim, (a, b))| dim == axis || a == b)
    };
    let all = tensors.iter().enumerate();
    let found = all.filter(|(_, (other, b))| other == data_type && shapes.iter().zip(b).all(fits));
    let found: Vec<usize> = found.map(|(index, _)| index).collect();
    let mut inputs = vec![with];
    for shift in [8, 16] {
        let next = pick(&found, choice, shift);
        let count = |tensor: usize| tensors[tensor].1[1].iter().product::<usize>();
        if choice >> (shift + 8) & 3 != 0
            && inputs.iter().map(|&t| count(t)).sum::<usize>() + count(next) <= MAX_ELEMENTS
        {
            inputs.push(next);
        }
    }
    let by = choice as usize % 3 % inputs.len();
    inputs.rotate_left(by);
    (axis, inputs)
}

/// The bits of a shuffled tensor, by ndarray.
fn shuffled(x: &Bits, first: &Option<Vec<u8>>, reshape: &Option<Vec<i64>>, second: &Option<Vec<u8>>) -> Bits {
    let permute = |x: Bits, axes: &Option<Vec<u8>>| match axes {
        None => x,
        Some(axes) => {
            let axes: Vec<usize> = axes.iter().map(|&a| a.into()).collect();
            x.permuted_axes(IxDyn(&axes)).as_standard_layout().to_owned()
        }
    };
    let x = permute(x.clone(), first);
    let x = match reshape {
        None => x,
        Some(dims) => {
            let copied: Vec<usize> =
                dims.iter().enumerate().map(|(i, &d)| if d == 0 { x.shape()[i] } else { d.max(1) as usize }).collect();
            let known: usize = copied.iter().product();
            let inferred = x.len() / known;
            let dims: Vec<usize> =
                dims.iter().zip(&copied).map(|(&d, &c)| if d == -1 { inferred } else { c }).collect();
            x.into_shape_with_order(IxDyn(&dims)).expect("as many elements")
        }
    };
    permute(x, second)
}

impl Local {
    pub fn add(&self, network: &mut Network, inputs: &[TensorId]) -> Result<TensorId> {
        match self {
            Local::Shuffle { first, reshape, second } => {
                let shuffle = Shuffle {
                    first_transpose: first.clone(),
                    reshape_dims: reshape.clone(),
                    second_transpose: second.clone(),
                };
                network.add_shuffle(inputs[0], shuffle)
            }
            Local::Cast(to) => network.add_cast(inputs[0], *to),
            Local::ElementWise(operation) => network.add_elementwise(inputs[0], inputs[1], *operation),
            Local::Concatenation(axis) => network.add_concatenation(inputs, *axis),
            Local::Slice { start, size, stride } => network.add_slice(inputs[0], start, size, stride),
            Local::Identity => network.add_identity(inputs[0]),
        }
    }

    /// The type of the output.
    pub fn output_type(&self, input: DataType) -> DataType {
        if let Local::Cast(to) = self { *to } else { input }
    }

    /// The output, from the inputs, which have one type.
    pub fn output(&self, data_type: DataType, inputs: &[&Bits]) -> Bits {
        match self {
            Local::Shuffle { first, reshape, second } => shuffled(inputs[0], first, reshape, second),
            Local::Cast(to) => inputs[0].mapv(|bits| reference::cast_element(data_type, *to, bits)),
            Local::ElementWise(operation) => reference::element_wise(*operation, data_type, inputs[0], inputs[1]),
            Local::Concatenation(axis) => {
                let views: Vec<_> = inputs.iter().map(|x| x.view()).collect();
                concatenate(Axis(*axis), &views).expect("shapes that fit").as_standard_layout().to_owned()
            }
            Local::Slice { start, size, stride } => {
                let size: Vec<usize> = size.iter().map(|&size| size as usize).collect();
                ArrayD::from_shape_fn(IxDyn(&size), |index| {
                    let at = |dim: usize| (start[dim] + index[dim] as i64 * stride[dim]) as usize;
                    inputs[0][IxDyn(&(0..size.len()).map(at).collect::<Vec<_>>())]
                })
            }
            Local::Identity => inputs[0].clone(),
        }
    }

    /// The dimensions of the output.
    pub fn output_dims(&self, inputs: &[&[usize]]) -> Vec<usize> {
        let inputs: Vec<Bits> = inputs.iter().map(|dims| ArrayD::zeros(IxDyn(dims))).collect();
        self.output(DataType::Uint8, &inputs.iter().collect::<Vec<_>>()).shape().to_vec()
    }
}

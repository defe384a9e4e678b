//! Inputs of collectives whose exact results are known.

use distcollective::tensor::{F8E4M3, F8E5M2, bf16, f16};
use distcollective::{CollectiveOperation, DataType, DistCollectiveLayer, ReduceOperation, Root};

/// The input of one rank for a layer, and its expected output. An element is its little-endian
/// bits.
///
/// - Operations that move elements: the bits depend on the rank and the index. With a transport
///   type they are those of whole numbers that it holds.
/// - Reductions: the result at an index is one of seven small whole numbers, which every type can
///   hold. For the average every rank has that number. Otherwise one rank has it, another rank for
///   each run of seven elements, and the others have the neutral element.
pub struct Values {
    operation: CollectiveOperation,
    reduce_op: Option<ReduceOperation>,
    has_wire_type: bool,
    root: usize,
    rank: usize,
    ranks: usize,
    byte_len: usize,
    results: [u64; RESULTS],
    neutral: u64,
}

const RESULTS: usize = 7;

impl Values {
    pub fn new(layer: &DistCollectiveLayer, data_type: DataType, rank: usize, ranks: usize) -> Self {
        let reduce_op = layer.reduce_op();
        // The average first computes a sum, which must not wrap in one byte.
        let largest = match (reduce_op, data_type) {
            (Some(ReduceOperation::Avg), DataType::Int8 | DataType::Uint8) => i8::MAX as usize / ranks,
            _ => RESULTS,
        };
        let neutral = match reduce_op {
            Some(ReduceOperation::Prod) => 1,
            // Whose bits are those of all results.
            Some(ReduceOperation::Min | ReduceOperation::Band) => RESULTS,
            _ => 0,
        };
        Values {
            operation: layer.collective_operation(),
            reduce_op,
            has_wire_type: layer.wire_type().is_some(),
            root: layer.root().map_or(0, Root::number) as usize,
            rank,
            ranks,
            byte_len: data_type.byte_len(),
            results: std::array::from_fn(|result| bits(data_type, result.min(largest))),
            neutral: bits(data_type, neutral),
        }
    }

    /// Writes this rank's input.
    pub fn fill(&self, input: &mut [u8]) {
        for (index, element) in input.chunks_exact_mut(self.byte_len).enumerate() {
            element.copy_from_slice(&self.given(self.rank, index).to_le_bytes()[..self.byte_len]);
        }
    }

    /// The number of wrong elements in this rank's output.
    pub fn wrong(&self, output: &[u8]) -> usize {
        let count = output.len() / self.byte_len;
        let elements = output.chunks_exact(self.byte_len).enumerate();
        elements
            .filter(|(index, element)| **element != self.expected(*index, count).to_le_bytes()[..self.byte_len])
            .count()
    }

    /// A rank's input at an index.
    fn given(&self, rank: usize, index: usize) -> u64 {
        match self.reduce_op {
            None => {
                let mixed = ((index * self.ranks + rank) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                match self.has_wire_type {
                    true => bits(DataType::Float32, (mixed >> 56) as usize),
                    false => mixed ^ mixed >> 32,
                }
            }
            Some(ReduceOperation::Avg) => self.result(index),
            Some(_) if index / RESULTS % self.ranks == rank => self.result(index),
            Some(_) => self.neutral,
        }
    }

    /// The reduction at an index.
    fn result(&self, index: usize) -> u64 {
        self.results[index % RESULTS]
    }

    /// This rank's output at an index, by the table of operations, where it has `count` elements.
    fn expected(&self, index: usize, count: usize) -> u64 {
        let block = count / self.ranks;
        match self.operation {
            CollectiveOperation::AllReduce | CollectiveOperation::Reduce => self.result(index),
            CollectiveOperation::ReduceScatter => self.result(self.rank * count + index),
            CollectiveOperation::Broadcast => self.given(self.root, index),
            CollectiveOperation::AllGather | CollectiveOperation::Gather => self.given(index / block, index % block),
            CollectiveOperation::AllToAll => self.given(index / block, self.rank * block + index % block),
            CollectiveOperation::Scatter => self.given(self.root, self.rank * count + index),
            other => panic!("bench does not know the output of {other}"),
        }
    }
}

/// The bits of a small whole number in a type.
fn bits(data_type: DataType, value: usize) -> u64 {
    let x = value as f32;
    match data_type {
        DataType::Float32 => x.to_bits().into(),
        DataType::Float16 => f16::from_f32(x).to_bits().into(),
        DataType::Bfloat16 => bf16::from_f32(x).to_bits().into(),
        DataType::Float8E4M3 => F8E4M3::from_f32(x).to_bits().into(),
        DataType::Float8E5M2 => F8E5M2::from_f32(x).to_bits().into(),
        DataType::Float64 => (value as f64).to_bits(),
        DataType::Int64 | DataType::Int32 | DataType::Int8 => value as u64,
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => value as u64,
        DataType::Bool => u64::from(value != 0),
        other => panic!("bench has no values of type {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_counted_and_so_is_a_block_in_the_wrong_place() {
        let reduce_op = Some(ReduceOperation::Sum);
        let layer = DistCollectiveLayer::new(CollectiveOperation::AllReduce, reduce_op, -1, &[]).expect("a layer");
        // With one rank, the result is the input.
        let values = Values::new(&layer, DataType::Float16, 0, 1);
        let mut output = [0u8; 40];
        values.fill(&mut output);
        assert_eq!(values.wrong(&output), 0);
        output[3] ^= 1;
        output[38] ^= 1;
        assert_eq!(values.wrong(&output), 2);

        let layer = DistCollectiveLayer::new(CollectiveOperation::AllGather, None, -1, &[]).expect("a layer");
        let [first, second] = [0, 1].map(|rank| {
            let mut block = [0u8; 16];
            Values::new(&layer, DataType::Int32, rank, 2).fill(&mut block);
            block
        });
        let values = Values::new(&layer, DataType::Int32, 1, 2);
        assert_eq!(values.wrong([first, second].as_flattened()), 0);
        assert_eq!(values.wrong([second, first].as_flattened()), 8);
    }
}

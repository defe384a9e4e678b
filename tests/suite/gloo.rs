//! Results equal those of PyTorch's gloo backend on the same inputs: exactly for integers,
//! movement, MAX and MIN, and within the bounds of `tolerance` for sums and products of floats.

use std::fs;
use std::process::Command;

use distcollective::collective::Collective;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, Rank, ReduceOperation, Result};
use test_support::{Folder, skip, timed};

use crate::ranks::on_ranks;
use crate::reference::to_f64;
use crate::tolerance;
use crate::values::{Random, ordinary, to_bits, to_bytes};

/// Debian's Python, whose PyTorch is a package.
const PYTHON: &str = "/usr/bin/python3";

/// The types that gloo and this library have.
const TYPES: [DataType; 6] =
    [DataType::Float32, DataType::Float16, DataType::Int64, DataType::Int32, DataType::Int8, DataType::Uint8];

const REDUCTIONS: [ReduceOperation; 4] =
    [ReduceOperation::Sum, ReduceOperation::Prod, ReduceOperation::Max, ReduceOperation::Min];

#[derive(Clone, Copy, Debug)]
struct Case {
    operation: CollectiveOperation,
    reduce_op: Option<ReduceOperation>,
    data_type: DataType,
    root: u32,
    /// How many elements a rank has.
    elements: usize,
}

impl Case {
    /// A rank's input as bits.
    fn input(&self, rank: u32) -> Vec<u64> {
        let mut random = Random((u64::from(rank) << 32) + self.elements as u64 + self.operation.number() as u64);
        (0..self.elements).map(|_| ordinary(self.data_type, &mut random)).collect()
    }

    fn bytes(&self, rank: u32) -> Vec<u8> {
        to_bytes(self.data_type, self.input(rank))
    }

    fn collective(&self) -> Collective<Rank> {
        let root = Rank(self.root);
        match (self.operation, self.reduce_op) {
            (CollectiveOperation::AllReduce, Some(reduce_op)) => Collective::AllReduce { reduce_op },
            (CollectiveOperation::Reduce, Some(reduce_op)) => Collective::Reduce { reduce_op, root },
            (CollectiveOperation::ReduceScatter, Some(reduce_op)) => Collective::ReduceScatter { reduce_op },
            (CollectiveOperation::AllGather, _) => Collective::AllGather,
            (CollectiveOperation::Broadcast, _) => Collective::Broadcast { root },
            (CollectiveOperation::AllToAll, _) => Collective::AllToAll,
            (CollectiveOperation::Gather, _) => Collective::Gather { root },
            (CollectiveOperation::Scatter, _) => Collective::Scatter { root },
            other => panic!("{other:?} is new"),
        }
    }

    /// A rank's output. `None` if it has none.
    fn run(&self, communicator: &Communicator) -> Result<Option<Vec<u64>>> {
        let (n, rank) = (communicator.world_size() as usize, communicator.rank());
        let elements = self.elements / self.operation.input_blocks(n) * self.operation.output_blocks(n);
        let mut input = Buffer::zeroed(self.data_type, [self.elements as i64])?;
        input.write(0, &self.bytes(rank.0))?;
        let mut output = Buffer::zeroed(self.data_type, [elements as i64])?;
        let (view, output_view) = (TensorView::from(&input), TensorViewMut::from(&mut output));
        communicator.collective(self.collective(), Some(view), Some(output_view))?;
        let has_output =
            !matches!(self.operation, CollectiveOperation::Reduce | CollectiveOperation::Gather) || rank.0 == self.root;
        Ok(has_output.then_some(to_bits(self.data_type, output.as_bytes()?)))
    }

    /// Whether an element is what it has to be, where gloo has another one.
    fn is_close(&self, n: u32, rank: u32, index: usize, own: u64, gloo: u64) -> bool {
        let (Some(reduce_op), true) = (self.reduce_op, self.data_type.is_float()) else { return own == gloo };
        let block = self.elements / n as usize;
        let at =
            if self.operation == CollectiveOperation::ReduceScatter { rank as usize * block + index } else { index };
        let operands: Vec<f64> = (0..n).map(|rank| to_f64(self.data_type, self.input(rank)[at])).collect();
        let [own, gloo] = [own, gloo].map(|bits| to_f64(self.data_type, bits));
        match reduce_op {
            ReduceOperation::Max | ReduceOperation::Min => own == gloo,
            _ => tolerance::is_close(reduce_op, self.data_type, &operands, own, gloo),
        }
    }
}

/// Every operation, reduction and type that both have.
fn cases(n: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    // gloo has no reduce_scatter.
    for operation in CollectiveOperation::ALL.into_iter().filter(|op| *op != CollectiveOperation::ReduceScatter) {
        for data_type in TYPES {
            let reductions: Vec<Option<ReduceOperation>> = match operation.reduces() {
                true => REDUCTIONS.map(Some).to_vec(),
                false => vec![None],
            };
            for reduce_op in reductions {
                for (root, blocks) in [(0, 1), (n - 1, 33)] {
                    cases.push(Case { operation, reduce_op, data_type, root, elements: blocks * n as usize });
                }
            }
        }
    }
    cases
}

/// What gloo gives each rank in each case; `None` where it has no output.
fn gloo(n: u32, cases: &[Case]) -> Option<Vec<Vec<Option<Vec<u8>>>>> {
    let import =
        Command::new(PYTHON).args(["-c", "import torch.distributed as d; assert d.is_gloo_available()"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        skip("PyTorch with gloo is not installed");
        return None;
    }
    let folder = Folder::create();
    let described: Vec<serde_json::Value> = cases
        .iter()
        .map(|case| {
            serde_json::json!({
                "operation": case.operation.name(),
                "reduce_op": case.reduce_op.map(ReduceOperation::name),
                "data_type": case.data_type.name(),
                "root": case.root,
                "bytes": case.elements * case.data_type.byte_len(),
            })
        })
        .collect();
    fs::write(folder.file("cases.json"), serde_json::Value::from(described).to_string()).expect("a file");
    for rank in 0..n {
        let bytes: Vec<u8> = cases.iter().flat_map(|case| case.bytes(rank)).collect();
        fs::write(folder.file(format!("in{rank}")), bytes).expect("a file");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/gloo.py");
    let (output, text) = test_support::run(timed(PYTHON).arg(script).arg(folder.path()).arg(n.to_string()));
    assert!(output.status.success(), "{text}");
    let of_rank = |rank: u32| {
        let all = fs::read(folder.file(format!("out{rank}"))).expect("an output");
        let mut rest = &all[..];
        let mut next = || {
            let (len, after) = rest.split_first_chunk::<8>().expect("a length");
            let (bytes, after) = match usize::try_from(i64::from_ne_bytes(*len)) {
                Ok(len) => (Some(after[..len].to_vec()), &after[len..]),
                Err(_) => (None, after),
            };
            rest = after;
            bytes
        };
        cases.iter().map(|_| next()).collect()
    };
    Some((0..n).map(of_rank).collect())
}

fn matches_gloo(n: u32) {
    let cases = cases(n);
    let Some(expected) = gloo(n, &cases) else { return };
    let own = {
        let cases = cases.clone();
        on_ranks(n, move |communicator| {
            let run = |case: &Case| case.run(&communicator).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            cases.iter().map(run).collect::<Vec<_>>()
        })
    };
    let mut compared = Vec::new();
    for (rank, (own, expected)) in own.iter().zip(&expected).enumerate() {
        for ((case, own), expected) in cases.iter().zip(own).zip(expected) {
            // gloo does not have the case, or the rank has no output.
            let Some(expected) = expected else { continue };
            let own = own.as_ref().unwrap_or_else(|| panic!("rank {rank} has no output: {case:?}"));
            let expected = to_bits(case.data_type, expected);
            assert_eq!(own.len(), expected.len(), "rank {rank}: {case:?}");
            for (index, (own, gloo)) in own.iter().zip(&expected).enumerate() {
                let is_close = case.is_close(n, rank as u32, index, *own, *gloo);
                assert!(is_close, "rank {rank}: {case:?}: element {index} is {own:#x}, and gloo's {gloo:#x}");
            }
            compared.push((case.operation, case.reduce_op, case.data_type));
        }
    }
    // gloo has these at least.
    for operation in CollectiveOperation::ALL.into_iter().filter(|op| *op != CollectiveOperation::ReduceScatter) {
        for data_type in [DataType::Float32, DataType::Int64, DataType::Int32, DataType::Int8, DataType::Uint8] {
            let reductions = if operation.reduces() { REDUCTIONS.map(Some).to_vec() } else { vec![None] };
            for reduce_op in reductions {
                assert!(compared.contains(&(operation, reduce_op, data_type)), "{operation} {reduce_op:?} {data_type}");
            }
        }
    }
}

#[test]
fn two_ranks_match_gloo() {
    matches_gloo(2);
}

#[test]
fn four_ranks_match_gloo() {
    matches_gloo(4);
}

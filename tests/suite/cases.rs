//! The cases of the conformance suite: every operation, reduction and type, and every pair of the
//! other parameters.

use std::collections::HashSet;

use distcollective::collective::{GroupRank, Partition};
use distcollective::{CollectiveOperation, DataType, Groups, Rank, ReduceOperation, Root, WireType};
use ndarray::{ArrayD, IxDyn};

use crate::reference::{self, Bits};
use crate::values::{Random, elements};

/// One collective to try. It is the same on every rank.
#[derive(Clone, Debug)]
pub struct Case {
    pub operation: CollectiveOperation,
    pub reduce_op: Option<ReduceOperation>,
    pub data_type: DataType,
    pub wire_type: Option<WireType>,
    pub n: u32,
    pub root: RootChoice,
    pub participants: Participants,
    pub shape: ShapeChoice,
    pub in_place: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RootChoice {
    First,
    Middle,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Participants {
    All,
    /// Every second rank, from the last down.
    SomeReversed,
    /// One rank.
    Lone,
    /// Interleaved groups of two, or of one if there is one rank. With an odd number, one rank
    /// takes no part.
    Pairs,
}

/// Dimension 0 in blocks, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShapeChoice {
    OneRow,
    Odd,
    NoRows,
    NoColumns,
    EightDims,
    Windows,
    Large,
}

const ROOTS: [RootChoice; 3] = [RootChoice::First, RootChoice::Middle, RootChoice::Last];
const PARTICIPANTS: [Participants; 4] =
    [Participants::All, Participants::SomeReversed, Participants::Lone, Participants::Pairs];
const SHAPES: [ShapeChoice; 7] = [
    ShapeChoice::OneRow,
    ShapeChoice::Odd,
    ShapeChoice::NoRows,
    ShapeChoice::NoColumns,
    ShapeChoice::EightDims,
    ShapeChoice::Windows,
    ShapeChoice::Large,
];

impl ShapeChoice {
    /// The input's dimensions in a group of `len` ranks, which divide dimension 0.
    pub fn dims(self, len: usize) -> Vec<usize> {
        match self {
            ShapeChoice::OneRow => vec![len],
            ShapeChoice::Odd => vec![3 * len, 7, 1],
            ShapeChoice::NoRows => vec![0, 5],
            ShapeChoice::NoColumns => vec![len, 0, 3],
            ShapeChoice::EightDims => vec![len, 2, 1, 3, 1, 2, 1, 2],
            // More than one block of arithmetic, and with 8 ranks of 8 bytes just more than one
            // access window.
            ShapeChoice::Windows => vec![len, 1031],
            ShapeChoice::Large => vec![len, 5, 2251],
        }
    }
}

impl Case {
    /// The layer's groups.
    pub fn groups(&self) -> Groups {
        let n = self.n;
        let ranks = |ranks: Vec<u32>| ranks.into_iter().map(Rank).collect();
        match self.participants {
            Participants::All => Groups::All,
            Participants::SomeReversed => Groups::Group(ranks((0..n).rev().step_by(2).collect())),
            Participants::Lone => Groups::Group(ranks(vec![n / 2])),
            Participants::Pairs if n == 1 => Groups::Partition(Partition::new([[0]])),
            Participants::Pairs => Groups::Partition(Partition::new((0..n / 2).map(|i| [i + n / 2, i]))),
        }
    }

    /// The number of ranks in a group.
    pub fn group_len(&self) -> usize {
        self.groups().group_len().unwrap_or(self.n as usize)
    }

    /// The root as a group rank.
    pub fn group_root(&self) -> usize {
        let len = self.group_len();
        match self.root {
            RootChoice::First => 0,
            RootChoice::Middle => len / 2,
            RootChoice::Last => len - 1,
        }
    }

    /// The layer's root.
    pub fn layer_root(&self) -> Option<Root> {
        let root = self.group_root();
        self.operation.has_root().then(|| match self.groups() {
            Groups::All => Root::Rank(Rank(root as u32)),
            Groups::Group(members) => Root::Rank(members[root]),
            Groups::Partition(_) => Root::GroupRank(GroupRank(root as u32)),
        })
    }

    /// The members of a rank's group, in group order. `None` if the rank takes no part.
    pub fn members(&self, rank: Rank) -> Option<Vec<Rank>> {
        match self.groups() {
            Groups::All => Some((0..self.n).map(Rank).collect()),
            groups => groups.group_of(rank).map(<[Rank]>::to_vec),
        }
    }

    /// The input's dimensions.
    pub fn dims(&self) -> Vec<usize> {
        self.shape.dims(self.group_len())
    }

    /// A rank's input.
    pub fn input(&self, rank: Rank) -> Bits {
        let dims = self.dims();
        let count = dims.iter().product();
        let seed = u64::from(rank.0) << 32 | self.operation.number() as u64;
        ArrayD::from_shape_vec(IxDyn(&dims), elements(self.data_type, count, seed)).expect("count of dims")
    }

    /// The inputs of a rank's group, in group order. Empty if the rank takes no part.
    pub fn inputs(&self, rank: Rank) -> Vec<Bits> {
        self.members(rank).iter().flatten().map(|&member| self.input(member)).collect()
    }

    /// A rank's output. `None` if the rank does not write it.
    pub fn expected(&self, rank: Rank) -> Option<Bits> {
        let own = self.members(rank)?.iter().position(|member| *member == rank).expect("a member");
        let inputs = reference::sent_as(self.wire_type, self.inputs(rank));
        reference::collective(self.operation, self.reduce_op, self.data_type, self.group_root(), own, &inputs)
    }

    /// Whether input and output can share memory.
    fn makes_sense(&self) -> bool {
        !(self.in_place && self.operation == CollectiveOperation::AllToAll && self.group_len() > 1)
            && (self.operation.has_root() || self.root == RootChoice::First)
    }

    /// The parameters of which pairs are formed: each parameter's number and value.
    fn parameters(&self) -> Vec<(usize, usize)> {
        let position = |found: Option<usize>| found.expect("every value is listed");
        vec![
            (0, self.operation.number() as usize),
            (1, self.reduce_op.map_or(9, |op| op.number() as usize)),
            (2, position(DataType::ALL.iter().position(|t| *t == self.data_type))),
            (3, position(ROOTS.iter().position(|r| *r == self.root))),
            (4, position(PARTICIPANTS.iter().position(|p| *p == self.participants))),
            (5, position(SHAPES.iter().position(|s| *s == self.shape))),
            (6, usize::from(self.in_place)),
            (7, self.wire_type.map_or(0, |wire_type| wire_type.number() as usize)),
        ]
    }
}

/// Whether an operation has a transport type.
pub fn has_wire_type(operation: CollectiveOperation) -> bool {
    use CollectiveOperation::{AllToAll, Gather, Scatter};
    !matches!(operation, AllToAll | Gather | Scatter)
}

/// A cell of the tables of operations and of types.
type Cell = (CollectiveOperation, Option<ReduceOperation>, DataType, Option<WireType>);

/// Every cell: operation, reduction, type, transport type.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for operation in CollectiveOperation::ALL {
        for data_type in DataType::ALL {
            if !operation.reduces() {
                cells.push((operation, None, data_type, None));
                continue;
            }
            for reduce_op in ReduceOperation::ALL {
                if reduce_op.applies_to(data_type) {
                    cells.push((operation, Some(reduce_op), data_type, None));
                }
            }
        }
    }
    let sent = cells.clone().into_iter();
    let sent = sent.filter(|(operation, _, data_type, _)| *data_type == DataType::Float32 && has_wire_type(*operation));
    let sent = sent.flat_map(|(operation, reduce_op, data_type, _)| {
        WireType::ALL.map(|wire_type| (operation, reduce_op, data_type, Some(wire_type)))
    });
    cells.extend(sent);
    cells
}

/// Every valid case for `n` ranks.
pub fn exhaustive(n: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for (operation, reduce_op, data_type, wire_type) in cells() {
        for root in ROOTS {
            for participants in PARTICIPANTS {
                for shape in SHAPES {
                    for in_place in [false, true] {
                        cases.push(Case {
                            operation,
                            reduce_op,
                            data_type,
                            wire_type,
                            n,
                            root,
                            participants,
                            shape,
                            in_place,
                        });
                    }
                }
            }
        }
    }
    cases.retain(Case::makes_sense);
    cases
}

/// For `n` ranks, a selection in which every cell occurs with all ranks taking part, and every pair
/// of parameters that the exhaustive list has.
pub fn pairwise(n: u32) -> Vec<Case> {
    let all = exhaustive(n);
    let mut random = Random(u64::from(n));
    let mut chosen = Vec::new();
    let mut covered = HashSet::new();
    let pairs = |case: &Case| {
        let parameters = case.parameters();
        let mut pairs = Vec::new();
        for (i, a) in parameters.iter().enumerate() {
            pairs.extend(parameters[..i].iter().map(|b| (*a, *b)));
        }
        pairs
    };
    let mut cells_left: HashSet<_> = cells().into_iter().collect();
    // Large tensors come last, so that few cases have them.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_cached_key(|&i| (all[i].shape == ShapeChoice::Large, random.next()));
    for i in order {
        let case = &all[i];
        let cell = (case.operation, case.reduce_op, case.data_type, case.wire_type);
        let new_cell = case.participants == Participants::All
            && !matches!(case.shape, ShapeChoice::NoRows | ShapeChoice::NoColumns | ShapeChoice::Large)
            && cells_left.remove(&cell);
        let new_pairs: Vec<_> = pairs(case).into_iter().filter(|pair| !covered.contains(pair)).collect();
        if new_cell || !new_pairs.is_empty() {
            covered.extend(new_pairs);
            chosen.push(case.clone());
        }
    }
    assert!(cells_left.is_empty());
    chosen
}

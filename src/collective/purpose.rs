//! Which of the library's calls a collective belongs to.

use std::fmt;

use crate::util::text::is_same;

/// Which of the library's calls a collective belongs to. Ranks compare its number, and errors say
/// its name. The module that makes the call declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Purpose(u8);

/// What ranks and errors do with a call of a purpose.
#[repr(u8)]
pub(crate) enum PurposeKind {
    /// The program calls the collective, and errors count it.
    Counted,
    /// It is a part of a call of the library, which may have several.
    Part,
    /// It is one of many parts that bring long data, such as the weights of a model.
    Bulk,
    /// It is about a run of a context as a whole.
    Run,
    /// The same, and only in call logs. Its `block_elements` is then any number.
    RunNote,
}

/// The names of all purposes. Each rank knows all of them, because a peer may make a call that this
/// rank never makes. In the name of a note about a run, `%` is the lowest byte of its number, and
/// `#` the rest.
const NAMES: [&str; 25] = [
    "collective",
    "barrier",
    "monitored_barrier",
    "finalize",
    "split",
    "new_group",
    "allocate",
    "set_communicator",
    "initialize",
    "broadcast_bytes",
    "all_gather_bytes",
    "gather_bytes",
    "scatter_bytes",
    "broadcast_tensor_dict",
    "a run with the buffers of no CUDA graph, or of several",
    "a run that replays CUDA graph % of context #",
    "run #, in a capture of the caller's",
    "run #, in no capture",
    "refusal of a run",
    "request",
    "end of a request",
    "a collective with counts",
    "blocks of different lengths",
    "a list of blocks",
    "a part of a call between machines",
];

/// The lowest bits of a number are the kind; the others are the place of the name.
const KIND_BITS: u32 = 3;
const _: () = assert!(NAMES.len() <= 1 << (u8::BITS - KIND_BITS));

impl Purpose {
    /// A collective of the user or of a layer.
    pub(crate) const COLLECTIVE: Self = Self::new("collective", PurposeKind::Counted);

    /// The exchange of the lengths of an [uneven](Self::UNEVEN) collective's blocks.
    pub(crate) const COUNTS: Self = Self::new("a collective with counts", PurposeKind::Part);

    /// A collective of the user's whose blocks differ in length. Ranks have exchanged the lengths.
    pub(crate) const UNEVEN: Self = Self::new("blocks of different lengths", PurposeKind::Counted);

    /// In call logs: a collective of the user's in its list form, for which NCCL makes other calls.
    pub(crate) const LIST: Self = Self::new("a list of blocks", PurposeKind::Counted);

    /// The purpose with a name of the list. In a constant, another name does not compile.
    pub(crate) const fn new(name: &str, kind: PurposeKind) -> Self {
        let mut place = 0;
        while !is_same(NAMES[place], name) {
            place += 1;
        }
        Purpose((place as u8) << KIND_BITS | kind as u8)
    }

    const fn kind(self) -> u8 {
        self.0 & ((1 << KIND_BITS) - 1)
    }

    pub(crate) fn is_counted(self) -> bool {
        self.kind() == PurposeKind::Counted as u8
    }

    pub(crate) fn is_bulk(self) -> bool {
        self.kind() == PurposeKind::Bulk as u8
    }

    pub(crate) fn is_run(self) -> bool {
        self.kind() >= PurposeKind::Run as u8
    }

    fn is_run_note(self) -> bool {
        self.kind() == PurposeKind::RunNote as u8
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let purpose = Purpose(number);
        let is_known = usize::from(number >> KIND_BITS) < NAMES.len();
        (is_known && purpose.kind() <= PurposeKind::RunNote as u8).then_some(purpose)
    }

    /// The call of the library, as errors name it.
    pub(crate) fn name(self) -> &'static str {
        NAMES[usize::from(self.0 >> KIND_BITS)]
    }

    /// Writes the name, with the number of a note.
    pub(super) fn write(self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        if !self.is_run_note() {
            return f.write_str(self.name());
        }
        let name = self.name().replace('%', &(number as u8).to_string());
        f.write_str(&name.replace('#', &(number >> u8::BITS).to_string()))
    }
}

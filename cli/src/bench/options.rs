//! What a benchmark measures, and how its results are shown.

use std::collections::BTreeSet;

use distcollective::{DataType, DistCollectiveLayer};
use serde_json::Value;

use crate::plot::Plot;

/// A benchmark, the same on every rank.
pub struct Bench {
    pub layers: Vec<DistCollectiveLayer>,
    pub data_type: DataType,
    pub ranks: usize,
    /// The requested sizes in bytes, ascending.
    pub sizes: Vec<usize>,
    /// The sizes are those of what a rank has to itself, and not of the whole tensor.
    pub sizes_per_rank: bool,
    pub timing: Timing,
    pub check: bool,
    pub symmetric: bool,
    /// The CPUs of each rank's thread, if ranks are threads that are bound.
    pub cpus: Option<Vec<BTreeSet<usize>>>,
    pub format: Format,
    pub settings: Settings,
    pub percentiles: Vec<u8>,
    pub explain: bool,
    pub plot: Option<Plot>,
}

/// How a call is repeated and timed.
pub struct Timing {
    /// The calls in a batch; `None` for as many as take 10 ms.
    pub iterations: Option<u32>,
    pub batches: u32,
    pub warmup: u32,
    /// The input is rewritten before each call.
    pub dirty: bool,
    /// A barrier follows each call, and its time is counted.
    pub barrier: bool,
}

#[derive(Clone)]
pub enum Format {
    Table,
    Csv,
    Json,
    /// Points with this label.
    Points(String),
}

/// The settings of a benchmark: lines above the table, and columns of CSV and JSON.
pub type Settings = Vec<(&'static str, Value)>;

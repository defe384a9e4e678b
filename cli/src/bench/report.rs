//! The output of `bench`: a table with the columns of nccl-tests, CSV, JSON or points.

use distcollective::comm::TransferPath;
use distcollective::{CollectiveOperation, DataType, ReduceOperation, Result};
use serde_json::{Map, Value};

use super::options::{Bench, Format};
use crate::output::{print, print_json};
use crate::plot::Point;

/// The result for one size.
pub struct Row {
    pub operation: CollectiveOperation,
    pub reduce_op: Option<ReduceOperation>,
    pub root: Option<u32>,
    pub data_type: DataType,
    pub ranks: usize,
    /// In bytes.
    pub size: usize,
    /// The bytes of what a rank has to itself.
    pub size_per_rank: usize,
    pub count: usize,
    pub out_of_place: Measured,
    /// `None` if the operation has no in-place form.
    pub in_place: Option<Measured>,
}

pub struct Measured {
    /// The mean time of a call in each batch, of the slowest rank, ascending.
    nanoseconds: Vec<f64>,
    /// The number of calls in a batch.
    calls: u32,
    /// How elements moved, if the backend tells.
    path: Option<TransferPath>,
    /// The number of wrong elements on all ranks, if the results were checked.
    wrong: Option<u64>,
}

impl Measured {
    pub fn new(mut nanoseconds: Vec<f64>, calls: u32, path: Option<TransferPath>, wrong: Option<u64>) -> Self {
        nanoseconds.sort_by(f64::total_cmp);
        Measured { nanoseconds, calls, path, wrong }
    }

    /// A time in microseconds which this many percent of the batches do not exceed: the nearest
    /// rank of the sorted batches. 0 is the shortest, 50 the median and 100 the longest.
    fn percentile(&self, percent: u8) -> f64 {
        let rank = (self.nanoseconds.len() * usize::from(percent)).div_ceil(100);
        self.nanoseconds[rank.saturating_sub(1)] / 1e3
    }
}

const MEDIAN: u8 = 50;

const COLUMNS: [&str; 14] = [
    "operation",
    "size_bytes",
    "element_count",
    "data_type",
    "reduce_op",
    "root",
    "out_of_place_time_us",
    "out_of_place_algbw_gb_per_s",
    "out_of_place_busbw_gb_per_s",
    "out_of_place_wrong",
    "in_place_time_us",
    "in_place_algbw_gb_per_s",
    "in_place_busbw_gb_per_s",
    "in_place_wrong",
];

/// The lines above an operation's rows in the table, which have all columns but the operation.
const HEADER: [[&str; 13]; 3] = [
    ["", "", "", "", "", "out-of-place", "", "", "", "in-place", "", "", ""],
    ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"],
    ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", ""],
];

const WIDTHS: [usize; 13] = [11, 11, 12, 6, 5, 13, 9, 9, 8, 13, 9, 9, 8];

/// The width of a column of the table after those.
const WIDTH: usize = 11;

impl Row {
    pub fn wrong(&self) -> u64 {
        self.out_of_place.wrong.unwrap_or(0) + self.in_place.as_ref().and_then(|measured| measured.wrong).unwrap_or(0)
    }

    /// The values of [`COLUMNS`].
    fn values(&self) -> Vec<Value> {
        let mut values = vec![
            Value::from(self.operation.name()),
            Value::from(self.size),
            Value::from(self.count),
            Value::from(self.data_type.name()),
            Value::from(self.reduce_op.map(ReduceOperation::name)),
            Value::from(self.root),
        ];
        values.extend(self.speed(&self.out_of_place));
        values.extend(self.in_place.as_ref().map_or_else(Default::default, |measured| self.speed(measured)));
        values
    }

    fn speed(&self, measured: &Measured) -> [Value; 4] {
        let microseconds = measured.percentile(MEDIAN);
        let algbw = self.size as f64 / microseconds / 1e3;
        let busbw = algbw * self.busbw_factor();
        [microseconds.into(), algbw.into(), busbw.into(), measured.wrong.into()]
    }

    /// What CSV and JSON have after [`COLUMNS`], and the table where it is asked for: percentiles
    /// and paths.
    fn details(&self, bench: &Bench) -> Vec<(String, Value)> {
        let both = [("out_of_place", Some(&self.out_of_place)), ("in_place", self.in_place.as_ref())];
        let of = |(form, measured): (&str, Option<&Measured>)| {
            let percentile = |name: String, percent: u8| {
                (format!("{form}_{name}_us"), measured.map(|measured| measured.percentile(percent)).into())
            };
            let calls = (format!("{form}_iterations"), measured.map(|measured| measured.calls).into());
            let ends = [percentile("min".to_owned(), 0), percentile("max".to_owned(), 100)];
            let asked = bench.percentiles.iter().map(|percent| percentile(format!("p{percent}"), *percent));
            let path = measured.and_then(|measured| measured.path).map(TransferPath::name);
            let path = bench.explain.then(|| (format!("{form}_path"), path.into()));
            std::iter::once(calls).chain(ends).chain(asked).chain(path).collect::<Vec<_>>()
        };
        both.into_iter().flat_map(of).collect()
    }

    /// The row out of place, as a point of a plot.
    fn point(&self, label: &str, has_barrier: bool) -> Point {
        let measured = &self.out_of_place;
        Point {
            label: label.to_owned(),
            ranks: self.ranks,
            operation: format!("{}{}", self.operation, if has_barrier { "_bar" } else { "" }),
            bytes: self.size_per_rank,
            median: measured.percentile(MEDIAN),
            min: measured.percentile(0),
            max: measured.percentile(100),
            batches: measured.nanoseconds.len(),
            iterations: measured.calls as usize,
        }
    }

    /// The factor of nccl-tests: its PERFORMANCE.md, and for gather and scatter its code.
    fn busbw_factor(&self) -> f64 {
        let n = self.ranks as f64;
        match self.operation {
            CollectiveOperation::AllReduce => 2.0 * (n - 1.0) / n,
            CollectiveOperation::Broadcast | CollectiveOperation::Reduce => 1.0,
            CollectiveOperation::AllGather
            | CollectiveOperation::ReduceScatter
            | CollectiveOperation::AllToAll
            | CollectiveOperation::Gather
            | CollectiveOperation::Scatter => (n - 1.0) / n,
            other => panic!("bench does not know the bus bandwidth of {other}"),
        }
    }
}

pub struct Report<'a> {
    bench: &'a Bench,
    points: Vec<Point>,
}

impl<'a> Report<'a> {
    /// Prints the settings and the header of CSV.
    pub fn begin(bench: &'a Bench) -> Self {
        match bench.format {
            Format::Table => {
                for (name, value) in &bench.settings {
                    print(format!("# {name}: {}\n", text(value)));
                }
                print("# time: the median of the batches; of each the mean call of the slowest rank\n");
                print("# size: the whole tensor; count: a rank's block of it\n");
            }
            Format::Json | Format::Csv | Format::Points(_) => {}
        }
        Report { bench, points: Vec::new() }
    }

    /// Prints the header of an operation's rows in the table.
    pub fn operation(&self, operation: CollectiveOperation) {
        if matches!(self.bench.format, Format::Table) {
            print(format!("#\n# {operation}\n"));
            let percentiles = self.bench.percentiles.iter().map(|percent| (format!("p{percent}"), "(us)"));
            let path = self.bench.explain.then(|| ("path".to_owned(), ""));
            let more = percentiles.chain(path);
            for (number, cells) in HEADER.iter().enumerate() {
                let more = more.clone().map(|(name, unit)| match number {
                    0 => String::new(),
                    1 => name,
                    _ => unit.to_owned(),
                });
                print(format!("#{}{}\n", line(cells), columns(&more.clone().chain(more).collect::<Vec<_>>())));
            }
        }
    }

    pub fn row(&mut self, row: &Row) {
        let bench = self.bench;
        let (values, details) = (row.values(), row.details(bench));
        let settings = bench.settings.iter().cloned().map(|(name, value)| (name.to_owned(), value));
        let named = COLUMNS.into_iter().map(str::to_owned).zip(values);
        match &bench.format {
            Format::Table => {
                // As nccl-tests shows what an operation does not have.
                let shown = |(name, value): (String, Value)| match name.as_str() {
                    "reduce_op" if value.is_null() => "none".to_owned(),
                    "root" if value.is_null() => "-1".to_owned(),
                    _ => cell(&value),
                };
                let cells: Vec<String> = named.skip(1).map(shown).collect();
                let is_asked_for = |name: &str| {
                    name.ends_with("_path") || bench.percentiles.iter().any(|p| name.ends_with(&format!("_p{p}_us")))
                };
                let more = details.iter().filter(|(name, _)| is_asked_for(name)).map(|(_, value)| cell(value));
                print(format!(" {}{}\n", line(&cells), columns(&more.collect::<Vec<_>>())));
            }
            Format::Csv => {
                let all: Vec<(String, Value)> = settings.chain(named).chain(details).collect();
                let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                let cells: Vec<String> = all.iter().map(|(_, value)| text(value)).collect();
                let header = if self.points.is_empty() { format!("{}\n", names.join(",")) } else { String::new() };
                print(format!("{header}{}\n", cells.join(",")));
            }
            Format::Json => {
                let object: Map<String, Value> = settings.chain(named).chain(details).collect();
                print_json("distcollective.bench/1", object.into());
            }
            Format::Points(label) => print(format!("{}\n", row.point(label, bench.timing.barrier))),
        }
        self.points.push(row.point("distcollective", bench.timing.barrier));
    }

    /// Draws the plot, if one is asked for.
    pub fn end(self) -> Result<()> {
        self.bench.plot.as_ref().map_or(Ok(()), |plot| plot.draw(self.points))
    }
}

/// The cell of a value in the table.
fn cell(value: &Value) -> String {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(number) => format!("{number:.3}"),
        None => text(value),
    }
}

/// More cells at the end of a line of the table.
fn columns(cells: &[String]) -> String {
    cells.iter().map(|cell| format!("{cell:>WIDTH$}")).collect()
}

/// A line of the table.
fn line(cells: &[impl AsRef<str>]) -> String {
    cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{:>width$}", cell.as_ref())).collect()
}

/// A value as text in the table and in CSV.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

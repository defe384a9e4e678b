//! The output of `bench`: a table with the columns of nccl-tests, CSV or JSON.

use distcollective::{CollectiveOperation, DataType, ReduceOperation};
use serde_json::{Map, Value};

use crate::output::print;

#[derive(Clone, Copy)]
pub enum Format {
    Table,
    Csv,
    Json,
}

/// The settings of a benchmark: lines above the table, and columns of CSV and JSON.
pub type Settings = Vec<(&'static str, Value)>;

/// The result for one size.
pub struct Row {
    pub operation: CollectiveOperation,
    pub reduce_op: Option<ReduceOperation>,
    pub root: Option<u32>,
    pub data_type: DataType,
    pub ranks: usize,
    /// In bytes.
    pub size: usize,
    pub count: usize,
    pub out_of_place: Measured,
    /// `None` if the operation has no in-place form.
    pub in_place: Option<Measured>,
}

pub struct Measured {
    pub nanoseconds: f64,
    /// The number of wrong elements on all ranks, if the results were checked.
    pub wrong: Option<u64>,
}

const COLUMNS: [&str; 14] = [
    "operation",
    "size",
    "count",
    "type",
    "redop",
    "root",
    "out_of_place_time_us",
    "out_of_place_algbw",
    "out_of_place_busbw",
    "out_of_place_wrong",
    "in_place_time_us",
    "in_place_algbw",
    "in_place_busbw",
    "in_place_wrong",
];

/// The lines above an operation's rows in the table, which have all columns but the operation.
const HEADER: [[&str; 13]; 3] = [
    ["", "", "", "", "", "out-of-place", "", "", "", "in-place", "", "", ""],
    ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"],
    ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", ""],
];

const WIDTHS: [usize; 13] = [11, 11, 12, 6, 5, 13, 9, 9, 8, 13, 9, 9, 8];

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
            Value::from(self.reduce_op.map_or("none", ReduceOperation::name)),
            Value::from(self.root.map_or(-1, i64::from)),
        ];
        values.extend(self.speed(&self.out_of_place));
        values.extend(self.in_place.as_ref().map_or_else(Default::default, |measured| self.speed(measured)));
        values
    }

    fn speed(&self, measured: &Measured) -> [Value; 4] {
        // Bytes per nanosecond are GB per second.
        let algbw = self.size as f64 / measured.nanoseconds;
        let busbw = algbw * self.busbw_factor();
        [(measured.nanoseconds / 1e3).into(), algbw.into(), busbw.into(), measured.wrong.into()]
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
    format: Format,
    settings: &'a Settings,
}

impl<'a> Report<'a> {
    /// Prints the settings and the header of CSV.
    pub fn begin(format: Format, settings: &'a Settings) -> Self {
        match format {
            Format::Table => {
                for (name, value) in settings {
                    print(format!("# {name}: {}\n", text(value)));
                }
                print("# time: each rank's mean of the iterations after a barrier; the largest, by all_reduce\n");
                print("# size: the whole tensor; count: a rank's block of it\n");
            }
            Format::Csv => {
                let names: Vec<&str> = settings.iter().map(|(name, _)| *name).chain(COLUMNS).collect();
                print(format!("{}\n", names.join(",")));
            }
            Format::Json => {}
        }
        Report { format, settings }
    }

    /// Prints the header of an operation's rows in the table.
    pub fn operation(&self, operation: CollectiveOperation) {
        if matches!(self.format, Format::Table) {
            print(format!("#\n# {operation}\n"));
            HEADER.iter().for_each(|cells| print(format!("#{}\n", line(cells).trim_end())));
        }
    }

    pub fn row(&self, row: &Row) {
        let values = row.values();
        let settings = self.settings.iter().cloned();
        print(match self.format {
            Format::Table => {
                let cells = values.iter().skip(1).map(|value| match value.as_f64().filter(|_| value.is_f64()) {
                    Some(number) => format!("{number:.3}"),
                    None => text(value),
                });
                format!(" {}\n", line(&cells.collect::<Vec<_>>()))
            }
            Format::Csv => {
                let cells: Vec<String> = settings.map(|(_, value)| value).chain(values).map(|v| text(&v)).collect();
                format!("{}\n", cells.join(","))
            }
            Format::Json => {
                let fields = settings.chain(COLUMNS.into_iter().zip(values));
                let object: Map<String, Value> = fields.map(|(name, value)| (name.to_owned(), value)).collect();
                format!("{}\n", Value::from(object))
            }
        });
    }
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

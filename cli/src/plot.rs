//! `distcollective plot`: points, which are lines of text that `bench` and other benchmarks write,
//! and their plot.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use distcollective::system::NewFile;
use distcollective::{Error, ErrorKind, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::output::Ended;

/// Draws times over sizes: a chart for each operation and number of ranks, with a line for each
/// label.
///
/// A point is a line of a file: label,ranks,operation,bytes,median,min,max,batches,iterations.
/// Times are in microseconds. `bench --points` prints such lines.
///
/// Example: distcollective plot all_reduce.svg points.csv
#[derive(clap::Args)]
pub struct Arguments {
    /// The SVG file
    svg: PathBuf,
    /// The files of points
    #[arg(required = true)]
    points: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Ended {
    let points = read_points(&arguments.points)?;
    if points.is_empty() {
        return Err("the files have no points".into());
    }
    Plot::new(arguments.svg.clone(), &[])?.draw(points)?;
    Ok(ExitCode::SUCCESS)
}

/// The time of one operation on one size. As text it is a line of comma-separated values: label,
/// ranks, operation, bytes a rank, median, minimum and maximum in microseconds, batches, and
/// iterations in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub label: String,
    pub ranks: usize,
    /// The operation's name, with `_bar` at its end if a barrier follows each call.
    pub operation: String,
    /// The bytes of what a rank has to itself.
    pub bytes: usize,
    /// In microseconds.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub batches: usize,
    pub iterations: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { label, ranks, operation, bytes, median, min, max, batches, iterations } = self;
        write!(f, "{label},{ranks},{operation},{bytes},{median:.3},{min:.3},{max:.3},{batches},{iterations}")
    }
}

impl FromStr for Point {
    type Err = &'static str;

    fn from_str(line: &str) -> std::result::Result<Self, Self::Err> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let [label, ranks, operation, bytes, median, min, max, batches, iterations] = cells[..] else {
            return Err("a point has nine values");
        };
        let count =
            |text: &str| text.parse::<usize>().map_err(|_| "a point's ranks, bytes and counts are whole numbers");
        let time = |text: &str| {
            let time = text.parse::<f64>().ok().filter(|time| time.is_finite() && *time > 0.0);
            time.ok_or("a point's times are microseconds above 0")
        };
        Ok(Point {
            label: label.to_owned(),
            ranks: count(ranks)?,
            operation: operation.to_owned(),
            bytes: count(bytes)?,
            median: time(median)?,
            min: time(min)?,
            max: time(max)?,
            batches: count(batches)?,
            iterations: count(iterations)?,
        })
    }
}

/// A plot of a benchmark's points and of those of others.
pub struct Plot {
    file: PathBuf,
    others: Vec<Point>,
}

/// The size of one operation's chart.
const CHART: (u32, u32) = (480, 320);

/// How many charts are side by side.
const COLUMNS: usize = 2;

impl Plot {
    /// A plot with the points of these files. The file can be written.
    pub fn new(file: PathBuf, others: &[PathBuf]) -> Result<Self> {
        let plot = Plot { others: read_points(others)?, file };
        // A reader of a pipe would see its end.
        if !plot.file.metadata().is_ok_and(|old| !old.is_file()) {
            NewFile::create(&plot.file).map_err(|e| plot.unwritable(&e))?;
        }
        Ok(plot)
    }

    fn unwritable(&self, e: &dyn fmt::Display) -> Error {
        failure(ErrorKind::System, &self.file, &format!("it cannot be written: {e}"))
    }

    /// Draws a chart for each operation of `own`. Others' points are shown for the same numbers of
    /// ranks.
    pub fn draw(&self, own: Vec<Point>) -> Result<()> {
        let mut operations: Vec<(String, usize)> = Vec::new();
        for point in &own {
            let operation = (point.operation.clone(), point.ranks);
            if !operations.contains(&operation) {
                operations.push(operation);
            }
        }
        let rows = operations.len().div_ceil(COLUMNS);
        let columns = operations.len().min(COLUMNS);
        let size = (CHART.0 * columns as u32, CHART.1 * rows as u32);
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(|e| self.unwritable(&e))?;
        let points: Vec<Point> = own.into_iter().chain(self.others.iter().cloned()).collect();
        for ((operation, ranks), area) in operations.iter().zip(area.split_evenly((rows, columns))) {
            let shown = points.iter().filter(|point| point.operation == *operation && point.ranks == *ranks);
            let title = format!("{operation}, {ranks} ranks");
            draw_chart(&area, &title, &shown.collect::<Vec<_>>()).map_err(|e| self.unwritable(&e))?;
        }
        area.present().map_err(|e| self.unwritable(&e))?;
        drop(area);
        NewFile::save(&self.file, svg).map_err(|e| self.unwritable(&e))
    }
}

/// The points of files. Lines that tell of a missing or a wrong point have fewer values, and are
/// left out.
fn read_points(files: &[PathBuf]) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path)
            .map_err(|e| failure(ErrorKind::System, path, &format!("it cannot be read: {e}")))?;
        for (index, line) in text.lines().enumerate() {
            if line.split(',').count() >= 9 {
                let wrong = |e| failure(ErrorKind::InvalidArgument, path, &format!("line {}: {e}", index + 1));
                points.push(line.parse().map_err(wrong)?);
            }
        }
    }
    Ok(points)
}

fn failure(kind: ErrorKind, path: &Path, what: &str) -> Error {
    Error::new(kind, format!("{}: {what}", path.display()))
}

/// A chart of times over sizes, with a line for each label.
fn draw_chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    points: &[&Point],
) -> std::result::Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let around = |values: &dyn Fn(&Point) -> f64| {
        let values = points.iter().map(|point| values(point));
        let (low, high) = values.fold((f64::MAX, 0.0), |(low, high), value| (value.min(low), value.max(high)));
        // A range of one value has no scale.
        low / 1.2..high * 1.2
    };
    let (sizes, times) = (around(&|point| point.bytes as f64), around(&|point| point.median));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale(), times.log_scale())?;
    let number = |value: &f64| if *value < 1.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    chart
        .configure_mesh()
        .x_desc("bytes a rank")
        .y_desc("us a call")
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .draw()?;
    let mut labels: Vec<&str> = Vec::new();
    for point in points {
        if !labels.contains(&point.label.as_str()) {
            labels.push(&point.label);
        }
    }
    for (index, label) in labels.into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let mut line: Vec<(f64, f64)> =
            points.iter().filter(|p| p.label == label).map(|p| (p.bytes as f64, p.median)).collect();
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(line, color).point_size(2))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_was_written() {
        let line = "ours,2,broadcast_bar,1024,1.500,1.250,2.000,9,4000";
        let point: Point = line.parse().expect("a point");
        assert_eq!((point.bytes, point.median, point.iterations), (1024, 1.5, 4000));
        assert_eq!(point.to_string(), line);
        for wrong in ["", "ours,2,broadcast,8,WRONG", "a,2,b,8,x,1,1,1,1", "a,2,b,-8,1,1,1,1,1", "a,2,b,8,0,1,1,1,1"] {
            assert!(wrong.parse::<Point>().is_err(), "{wrong}");
        }
    }
}

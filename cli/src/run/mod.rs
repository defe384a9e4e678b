//! `distcollective run`: runs one layer on files, or the plan of an engine.

mod layer;
mod plan;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use distcollective::collective::Partition;
use distcollective::comm::BackendKind;
use distcollective::{CollectiveOperation, DataType, Groups, ReduceOperation};

use crate::names;
use crate::output::{Ended, print, print_json};

/// Runs one DistCollective layer on `.npy` files, or a plan, each rank a thread.
///
/// `{rank}` in a file's name stands for the rank. No output may be one of the input files.
///
/// Of one layer, a rank whose output the operation does not write gets no output file.
///
/// A plan takes --input NAME=FILE for each input, which is zeros unless given, of the usual shape
/// of the optimization profile. An output is zeros on a rank that does not write it. The table has
/// how long each layer took on each rank: the time, the part in which the rank waited for others,
/// the rest, and the bytes that the layer reads and writes. `DCL_PROFILE` writes the same times
/// into a file that Perfetto opens.
///
/// Example: distcollective run --op all_gather -n 3 --input 'in{rank}.npy' --output 'out{rank}.npy'
///
/// Example: distcollective run model.plan -n 2 --input 'x=in{rank}.npy'
#[derive(clap::Args)]
pub struct Arguments {
    /// A plan to run in place of one layer
    #[arg(value_hint = ValueHint::FilePath, conflicts_with_all = ["op", "reduce_op", "root", "groups", "dtype", "json"])]
    plan: Option<PathBuf>,
    /// The operation
    #[arg(long, value_parser = names::operation(), required_unless_present = "plan")]
    op: Option<CollectiveOperation>,
    /// The reduction, for operations that reduce
    #[arg(long, value_parser = names::reduce_operation())]
    reduce_op: Option<ReduceOperation>,
    /// The root, for operations that have one: a rank; with several groups, a number within each
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=65535))]
    root: Option<u32>,
    /// The ranks that take part, in this order: '2,0'. Several groups, which do the operation each
    /// by itself: '0,1;2,3'. All ranks unless given
    #[arg(long, value_parser = groups)]
    groups: Option<Groups>,
    /// The element type; the files' own unless given. bfloat16 is stored as uint16, float8 as uint8
    #[arg(long, value_parser = names::data_type())]
    dtype: Option<DataType>,
    /// The number of ranks
    #[arg(short, long = "ranks", value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: u32,
    /// The input files, with {rank} in the name; of a plan NAME=FILE
    #[arg(long, value_hint = ValueHint::FilePath, required_unless_present = "plan")]
    input: Vec<String>,
    /// The output files, with {rank} in the name; of a plan NAME=FILE
    #[arg(long, value_hint = ValueHint::FilePath, required_unless_present = "plan")]
    output: Vec<String>,
    /// How many runs of a plan count; one comes before them [default: 10]
    #[arg(long, requires = "plan", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// The backend; auto is NCCL if there is a GPU for each rank
    #[arg(long, default_value = "host", value_parser = names::backend(&[]))]
    backend: BackendKind,
    /// How long a rank waits for the others, in seconds [default: DCL_TIMEOUT, or 60]
    #[arg(long, value_parser = crate::seconds)]
    timeout: Option<Duration>,
    /// Print one line of JSON: the layer, and the files that were read and written
    #[arg(long)]
    json: bool,
}

/// Reads `2,0` as a group, and `0,1;2,3` as a partition.
fn groups(text: &str) -> Result<Groups, String> {
    let group = |text: &str| -> Result<Vec<u32>, String> {
        let rank = |rank: &str| {
            rank.trim()
                .parse()
                .map_err(|_| format!("{rank:?} is not a rank; give ranks as '2,0', and several groups as '0,1;2,3'"))
        };
        text.split(',').map(rank).collect()
    };
    let groups = match &text.split(';').map(group).collect::<Result<Vec<_>, _>>()?[..] {
        [group] => Groups::Group(group.iter().copied().map(Into::into).collect()),
        groups => Groups::Partition(Partition::new(groups.iter().map(|group| group.iter().copied()))),
    };
    groups.check().map_err(|e| e.to_string())?;
    Ok(groups)
}

pub fn run(arguments: &Arguments) -> Ended {
    crate::check_alone("run")?;
    match &arguments.plan {
        Some(plan) => print(plan::run_ranks(plan, arguments)?),
        None => {
            let summary = layer::run_ranks(arguments)?;
            if arguments.json {
                print_json("distcollective.run/1", summary);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_are_read_and_checked() {
        for (text, shown) in [("2,0", "[2, 0]"), (" 2 , 0 ", "[2, 0]"), ("3", "[3]"), ("0,1;2,3", "[[0, 1], [2, 3]]")] {
            assert_eq!(groups(text).map(|groups| groups.to_string()).as_deref(), Ok(shown));
        }
        for (text, says) in [
            ("", "\"\" is not a rank; give ranks as '2,0', and several groups as '0,1;2,3'"),
            ("0,1;", "\"\" is not a rank"),
            ("0,-1", "\"-1\" is not a rank"),
            ("0,1;2", "equal lengths"),
            ("0,1;1,2", "rank 1 occurs twice"),
        ] {
            let error = groups(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

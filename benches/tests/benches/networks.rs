use serde_json::Value;

use crate::benchmark;

#[test]
fn every_kind_and_size_is_measured() {
    let (output, text) = test_support::run(benchmark("networks").args(["--most", "100"]));
    assert!(output.status.success(), "{text}");
    let lines = test_support::text(&output.stdout);
    let results: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let kinds: Vec<_> = results.iter().map(|r| (r["kind"].as_str().expect("a name"), r["layers"].as_u64())).collect();
    assert_eq!(kinds, [("chain", Some(10)), ("chain", Some(100)), ("wide", Some(10)), ("wide", Some(100))]);
    let times = ["describe_us", "build_us", "write_us", "read_us"];
    assert!(results.iter().all(|result| times.iter().all(|time| result[time].is_f64())), "{results:?}");
}

#[test]
fn other_arguments_are_an_error() {
    let (output, text) = test_support::run(benchmark("networks").args(["--least", "3"]));
    assert!(!output.status.success() && text.contains("unexpected argument '--least'"), "{text}");
}

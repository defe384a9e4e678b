use serde_json::Value;

use crate::benchmark;

#[test]
fn every_length_and_computation_is_measured() {
    let mut command = benchmark("overlap");
    command.args(["--kilobytes", "1,64", "--rounds", "1", "--ranks", "2,3"]);
    let text = test_support::succeed(&mut command);
    let results: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let measured = results.iter().filter(|result| result["implementation"] == "distcollective");
    let found: Vec<_> = measured
        .map(|result| {
            let times = ["compute_ms", "all_reduce_ms", "both_ms", "slowdown"].map(|key| result[key].as_f64());
            assert!(
                times.iter().all(|time| time.is_some_and(|time| time > 0.0)) && result["hidden"].is_f64(),
                "{text}"
            );
            (result["ranks"].as_u64(), result["bytes"].as_u64(), result["computation"].as_str())
        })
        .collect();
    let expected = [2, 3].into_iter().flat_map(|ranks| {
        let of_length = move |bytes| ["in the cache", "in memory"].map(|work| (Some(ranks), Some(bytes), Some(work)));
        [1 << 10, 64 << 10].into_iter().flat_map(of_length)
    });
    assert_eq!(found, expected.collect::<Vec<_>>(), "{text}");
}

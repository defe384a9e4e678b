use serde_json::Value;

use crate::benchmark;

#[test]
fn every_number_of_processes_is_measured() {
    let file = std::env::temp_dir().join(format!("dcl-weights-bench-{}.safetensors", std::process::id()));
    let mut command = benchmark("weights");
    command.args(["--megabytes", "2", "--tensors", "7", "--rounds", "1", "--ranks", "2,3", "--file"]).arg(&file);
    let text = test_support::succeed(&mut command);
    let results: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let of = |benchmark: &str| results.iter().filter(|result| result["benchmark"] == benchmark).collect::<Vec<_>>();
    let ranks: Vec<_> = of("weights").iter().filter_map(|result| result["ranks"].as_u64()).collect();
    assert_eq!((ranks, of("copy").len()), (vec![2, 3], 2), "{text}");
    assert!(of("weights")[1]["received_gb_per_s"].is_f64() && !file.exists(), "{text}");
}

use serde_json::Value;

use crate::benchmark;

#[test]
fn ranks_sizes_layers_and_groups_are_measured() {
    let mut command = benchmark("growth");
    command.args(["--ranks", "2", "--bytes", "64", "--layers", "100", "--groups", "10"]);
    let text = test_support::succeed(&mut command);
    let results: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let all = |benchmark: &str, field: &str| {
        let found = results.iter().filter(|result| result["benchmark"] == benchmark);
        found.map(|result| result[field].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(all("layers", "layers"), [10, 100, 10, 100]);
    assert_eq!(all("connect", "ranks"), [1, 1, 2, 2]);
    assert_eq!(all("all_reduce", "bytes"), [8, 64].repeat(4));
    assert_eq!(all("groups", "groups"), [1, 10, 1, 10]);
    let times =
        [("layers", "enqueue_us"), ("connect", "connect_us"), ("all_reduce", "median_us"), ("groups", "split_us")];
    for (benchmark, field) in times {
        assert!(results.iter().filter(|r| r["benchmark"] == benchmark).all(|r| r[field].is_f64()), "{field}: {text}");
    }
}

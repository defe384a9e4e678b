//! The JSON of a command, and its schema.

use boon::{Compiler, Schemas};
use serde_json::Value;
use test_support::{run, timed};

/// Reads a line of JSON, which must fit the schema that it names.
pub fn read(line: &str) -> Value {
    let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    check(&value).unwrap_or_else(|mistakes| panic!("{mistakes}\n{line}"));
    value
}

/// Checks an object against the schema that it names, as the program prints it.
pub fn check(value: &Value) -> Result<(), String> {
    let names = value["schema"].as_str().and_then(|schema| schema.strip_prefix("distcollective."));
    let (command, _) = names.and_then(|names| names.split_once('/')).ok_or("no schema is named")?;
    let (_, text) = run(timed(env!("CARGO_BIN_EXE_distcollective")).args(["schema", command]));
    let schema = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.add_resource("schema.json", schema).expect("a name of a file");
    let index = compiler.compile("schema.json", &mut schemas).expect("a schema of draft 2020-12");
    schemas.validate(value, index).map_err(|error| format!("{error:#}"))
}

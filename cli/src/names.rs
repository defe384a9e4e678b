//! Options whose values are names that the library knows.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use distcollective::comm::BackendKind;
use distcollective::{CollectiveOperation, DataType, ReduceOperation, WireType};

/// Parses values as `parser` does, which takes names in any case. Help lists the names, and shells
/// complete them.
#[derive(Clone)]
pub struct Named<P> {
    parser: P,
    names: Vec<&'static str>,
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        self.parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

pub fn operation() -> Named<impl TypedValueParser<Value = CollectiveOperation>> {
    Named {
        parser: str::parse::<CollectiveOperation>,
        names: CollectiveOperation::ALL.map(CollectiveOperation::name).into(),
    }
}

/// The operations that a name stands for: one, or all for `all`.
pub fn operations() -> Named<impl TypedValueParser<Value = Vec<CollectiveOperation>>> {
    let parser = |text: &str| -> distcollective::Result<_> {
        if text.eq_ignore_ascii_case("all") { Ok(CollectiveOperation::ALL.to_vec()) } else { Ok(vec![text.parse()?]) }
    };
    Named { parser, names: operation().names.into_iter().chain(["all"]).collect() }
}

pub fn reduce_operation() -> Named<impl TypedValueParser<Value = ReduceOperation>> {
    Named { parser: str::parse::<ReduceOperation>, names: ReduceOperation::ALL.map(ReduceOperation::name).into() }
}

pub fn data_type() -> Named<impl TypedValueParser<Value = DataType>> {
    Named { parser: str::parse::<DataType>, names: DataType::ALL.map(DataType::name).into() }
}

pub fn wire_type() -> Named<impl TypedValueParser<Value = WireType>> {
    Named { parser: str::parse::<WireType>, names: WireType::ALL.map(WireType::name).into() }
}

pub fn backend(more: &[&'static str]) -> Named<impl TypedValueParser<Value = BackendKind>> {
    Named { parser: str::parse::<BackendKind>, names: [&["auto", "host", "nccl"], more].concat() }
}

//! Reading variables, with a list of all mistakes.

use std::collections::BTreeMap;

use super::system::System;

/// The source of a value that is not a variable's.
pub(super) const GIVEN: &str = "given by the caller";

/// What has been found so far.
pub(super) struct Search<'a> {
    pub(super) system: &'a dyn System,
    pub(super) mistakes: Vec<String>,
    /// Where each value came from.
    pub(super) sources: BTreeMap<&'static str, String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(system: &'a dyn System) -> Self {
        Search { system, mistakes: Vec::new(), sources: BTreeMap::new() }
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.system.variable(name).is_some()
    }

    /// A variable's text. One that is not UTF-8 is a mistake, but not a missing one.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.system.variable(name)?;
        Some(value.into_string().unwrap_or_else(|value| {
            self.mistakes.push(format!("{name} is {value:?}, which is not UTF-8"));
            value.to_string_lossy().into_owned()
        }))
    }

    /// The values of variables, but for empty ones.
    pub(super) fn texts(&mut self, names: &[&str]) -> Vec<String> {
        names.iter().filter_map(|name| self.text(name).filter(|text| !text.is_empty())).collect()
    }

    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        let text = self.system.variable(name)?;
        let number = text.to_str().and_then(|text| text.trim().parse().ok());
        if number.is_none() {
            self.mistakes.push(format!("{name} is {text:?}, which is not a number"));
        }
        number
    }

    pub(super) fn optional(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        let value = self.number(name)?;
        self.sources.insert(what, name.to_owned());
        Some(value)
    }

    pub(super) fn required(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        if !self.is_set(name) {
            self.mistakes.push(format!("{name} is not set"));
            return None;
        }
        self.optional(what, name)
    }

    /// A value with the variable that it came from: `WORLD_SIZE is 2`.
    pub(super) fn said(&self, what: &str, value: u32) -> String {
        let source = self.sources.get(what).map_or(what, |source| if source == GIVEN { what } else { source.as_str() });
        format!("{source} is {value}")
    }

    /// Checks that a rank is below the number of ranks.
    pub(super) fn check_one_of(&mut self, what: &str, rank: Option<u32>, of: &str, count: Option<u32>) {
        if let (Some(rank), Some(count)) = (rank, count)
            && rank >= count
        {
            let mistake = format!("{}, which is not one of {count}: {}", self.said(what, rank), self.said(of, count));
            self.mistakes.push(mistake);
        }
    }
}

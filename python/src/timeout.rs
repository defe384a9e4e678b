//! Timeouts as Python gives them.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A `datetime.timedelta`, or a number of seconds.
#[derive(Clone, Copy)]
pub(super) struct Timeout(pub(super) Duration);

impl FromPyObject<'_, '_> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(duration) = object.extract::<Duration>() {
            return Ok(Timeout(duration));
        }
        let wrong = || PyTypeError::new_err("a timeout is a timedelta or a number of seconds");
        let seconds = object.extract::<f64>().map_err(|_| wrong())?;
        let negative = || PyValueError::new_err(format!("a timeout of {seconds} s is negative or no number"));
        match seconds {
            // Longer than any program runs.
            1e9.. => Ok(Timeout(Duration::from_secs(1_000_000_000))),
            _ => Duration::try_from_secs_f64(seconds).map(Timeout).map_err(|_| negative()),
        }
    }
}

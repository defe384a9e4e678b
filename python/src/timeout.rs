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
        let number =
            object.call_method0("total_seconds").map_or_else(|_| object.extract(), |seconds| seconds.extract());
        let seconds: f64 =
            number.map_err(|_| PyTypeError::new_err("a timeout is a timedelta or a number of seconds"))?;
        match seconds {
            // Longer than any program runs.
            1e9.. => Ok(Timeout(Duration::from_secs(1_000_000_000))),
            // Zero may stand for no limit.
            0.0.. => Ok(Timeout(Duration::from_secs_f64(seconds).max(Duration::from_nanos(u64::from(seconds > 0.0))))),
            _ => Err(PyValueError::new_err(format!("a timeout of {seconds} s is negative or no number"))),
        }
    }
}

//! What this library's own environment variables say: `DCL_TIMEOUT`, `DCL_SLOW_WARNING`, `DCL_LOG`,
//! `DCL_PROFILE`. They are read once, at the first use of any of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::error::{Result, bail};

/// The time that a collective call waits for other ranks, unless the caller or `DCL_TIMEOUT` says
/// otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a wait lasts before it is logged, unless `DCL_SLOW_WARNING` says otherwise.
const SLOW_WARNING: Duration = Duration::from_secs(10);

/// The values of the variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `DCL_TIMEOUT`, where it is set.
    pub(crate) timeout: Option<Duration>,
    /// `DCL_SLOW_WARNING`, in seconds; `None` for 0, which means never.
    pub(crate) slow_warning: Option<Duration>,
    /// `DCL_LOG`, where it is set.
    pub(crate) log: Option<LevelFilter>,
    /// `DCL_PROFILE`, where it is set: a file.
    pub(crate) profile: Option<PathBuf>,
}

impl Settings {
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let seconds = |name: &str, wanted: &str, is_allowed: fn(&Duration) -> bool| {
            let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return Ok(None) };
            let number = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
            match number.and_then(|number| Duration::try_from_secs_f64(number).ok()).filter(is_allowed) {
                Some(duration) => Ok(Some(duration)),
                None => bail!(InvalidArgument, "{name} is {text:?}, which is not a number of seconds{wanted}"),
            }
        };
        let log = match variable("DCL_LOG").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => match text.to_str().map(str::parse::<LevelFilter>) {
                Some(Ok(level)) => Some(level),
                _ => bail!(
                    InvalidArgument,
                    "DCL_LOG is {text:?}, which is not one of off, error, warn, info, debug and trace"
                ),
            },
        };
        Ok(Settings {
            timeout: seconds("DCL_TIMEOUT", " above 0, such as 60 or 0.5", |timeout| !timeout.is_zero())?,
            slow_warning: Some(seconds("DCL_SLOW_WARNING", "; 0 means never", |_| true)?.unwrap_or(SLOW_WARNING))
                .filter(|wait| !wait.is_zero()),
            log,
            profile: variable("DCL_PROFILE").filter(|text| !text.is_empty()).map(PathBuf::from),
        })
    }
}

static SETTINGS: OnceLock<Result<Settings>> = OnceLock::new();

/// The settings of this process.
///
/// # Errors
///
/// A variable with a value that it cannot have.
pub(crate) fn settings() -> Result<&'static Settings> {
    let settings = SETTINGS.get_or_init(|| Settings::read(|name| std::env::var_os(name)));
    settings.as_ref().map_err(Clone::clone)
}

/// The variables of [`Settings`].
pub(crate) const SETTINGS_VARIABLES: [&str; 4] = ["DCL_TIMEOUT", "DCL_SLOW_WARNING", "DCL_LOG", "DCL_PROFILE"];

/// What is wrong with each of the variables.
pub(crate) fn mistakes() -> Vec<String> {
    let read_one = |one| Settings::read(|name| std::env::var_os(name).filter(|_| name == one));
    SETTINGS_VARIABLES.iter().filter_map(|name| Some(read_one(*name).err()?.to_string())).collect()
}

/// The names that differ from one of [`SETTINGS_VARIABLES`] in one or two neighbouring letters, and
/// that one. Those of other programs begin differently.
pub(crate) fn mistyped(names: impl Iterator<Item = String>) -> Vec<(String, &'static str)> {
    fn common(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
        a.zip(b).take_while(|(a, b)| a == b).count()
    }
    let is_near = |name: &str, setting: &str| {
        let start = common(name.bytes(), setting.bytes());
        let (name, setting) = (&name.as_bytes()[start..], &setting.as_bytes()[start..]);
        let end = common(name.iter().rev().copied(), setting.iter().rev().copied());
        // Of a short name, another letter may make another name.
        let most = if setting.len() + start > "DCL_LOG".len() { 2 } else { 1 };
        (1..=most).contains(&(name.len().max(setting.len()) - end))
    };
    let nearest = |name: &str| SETTINGS_VARIABLES.into_iter().find(|setting| is_near(name, setting));
    let ours = names.filter(|name| name.starts_with("DCL"));
    ours.filter_map(|name| nearest(&name).map(|setting| (name, setting))).collect()
}

/// The timeout that `DCL_TIMEOUT` sets, in seconds; `default` where it is not set.
///
/// The library calls it with [`DEFAULT_TIMEOUT`] if the caller gives no timeout.
///
/// # Errors
///
/// `DCL_TIMEOUT`, `DCL_SLOW_WARNING` or `DCL_LOG` has a value that it cannot have.
pub fn timeout_or(default: Duration) -> Result<Duration> {
    Ok(settings()?.timeout.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn variables_replace_the_defaults() {
        let defaults = Settings { timeout: None, slow_warning: Some(SLOW_WARNING), log: None, profile: None };
        assert_eq!(read(&[]).expect("the defaults"), defaults);
        assert_eq!(read(&[("DCL_TIMEOUT", ""), ("DCL_LOG", "")]).expect("the defaults"), defaults);
        let set =
            read(&[("DCL_TIMEOUT", "1.5"), ("DCL_SLOW_WARNING", "0"), ("DCL_LOG", "debug"), ("DCL_PROFILE", "a")]);
        let expected = Settings {
            timeout: Some(Duration::from_millis(1500)),
            slow_warning: None,
            log: Some(LevelFilter::DEBUG),
            profile: Some("a".into()),
        };
        assert_eq!(set.expect("all of them are values"), expected);
    }

    #[test]
    fn a_name_that_is_almost_a_setting_is_mistyped() {
        let mistyped = |name: &str| mistyped([name.to_owned()].into_iter()).first().map(|(_, setting)| *setting);
        for name in ["_TIMEOT", "_TIMEOUTS", "_TIEMOUT", "_TIMEOUT_S", "TIMEOUT"].map(|name| format!("DCL{name}")) {
            assert_eq!(mistyped(&name), Some("DCL_TIMEOUT"), "{name}");
        }
        for name in ["DCL_TIMEOUT", "DCL_LOG", "DCL_JOB_ID", "DCL_SECRET", "TIMEOUT", "DCL_", "", "VCL_LOG"] {
            assert_eq!(mistyped(name), None, "{name}");
        }
    }

    #[test]
    fn a_wrong_value_is_an_error_that_names_the_variable() {
        let seconds = "which is not a number of seconds above 0, such as 60 or 0.5";
        for (name, value, reason) in [
            ("DCL_TIMEOUT", "soon", seconds),
            ("DCL_TIMEOUT", "0", seconds),
            ("DCL_TIMEOUT", "1e-300", seconds),
            ("DCL_TIMEOUT", "-1", seconds),
            ("DCL_TIMEOUT", "inf", seconds),
            ("DCL_SLOW_WARNING", "NaN", "which is not a number of seconds; 0 means never"),
            ("DCL_LOG", "loud", "which is not one of off, error, warn, info, debug and trace"),
        ] {
            let error = read(&[(name, value)]).expect_err(value);
            assert_eq!(error.to_string(), format!("{name} is {value:?}, {reason}"));
        }
    }
}

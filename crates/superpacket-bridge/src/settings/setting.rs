//! The type of a setting: a row of the tables in [`table`](super::table).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The value of a setting. In JSON and in files it is a number, a boolean or a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, a boolean or a word")]
pub enum SettingValue {
    /// A number in the setting's unit.
    Number(u64),
    /// A switch that is on or off.
    Switch(bool),
    /// A word that the setting allows.
    Word(String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingValue::Number(number) => number.fmt(formatter),
            SettingValue::Switch(on) => formatter.write_str(if *on { "on" } else { "off" }),
            SettingValue::Word(word) => formatter.write_str(word),
        }
    }
}

impl From<u64> for SettingValue {
    fn from(number: u64) -> Self {
        SettingValue::Number(number)
    }
}

impl From<bool> for SettingValue {
    fn from(on: bool) -> Self {
        SettingValue::Switch(on)
    }
}

/// Reads a decimal number, `on` or `off`; any other text is a word.
impl From<&str> for SettingValue {
    fn from(text: &str) -> Self {
        match text {
            "on" => SettingValue::Switch(true),
            "off" => SettingValue::Switch(false),
            _ => text
                .parse()
                .map_or_else(|_| SettingValue::Word(text.to_owned()), SettingValue::Number),
        }
    }
}

/// The type of a setting's value, with the values that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingType {
    /// A number from `least` to `most`.
    Number {
        /// The smallest number, apart from 0 if 0 has a meaning of its own.
        least: u64,
        /// The largest number.
        most: u64,
        /// The meaning of 0 if it is allowed below `least`; otherwise empty.
        zero: &'static str,
        /// The unit, such as `bytes`, `packets/s` or `ns`.
        unit: &'static str,
    },
    /// A switch: `on` or `off` in commands, a boolean in JSON and in files.
    Switch,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A value of any type, in the format that this text describes.
    Text(&'static str),
}

impl SettingType {
    /// Returns a number from `least` to `most` in a unit.
    pub(super) const fn number(least: u64, most: u64, unit: &'static str) -> Self {
        SettingType::Number { least, most, zero: "", unit }
    }

    /// Returns this type with 0 also allowed, with the meaning `zero`.
    pub(super) const fn or_zero(self, zero: &'static str) -> Self {
        match self {
            SettingType::Number { least, most, unit, .. } => {
                SettingType::Number { least, most, zero, unit }
            }
            other => other,
        }
    }

    /// Returns the unit of a number.
    pub const fn unit(&self) -> Option<&'static str> {
        match self {
            SettingType::Number { unit, .. } => Some(unit),
            _ => None,
        }
    }

    fn allows(&self, value: &SettingValue) -> bool {
        match (self, value) {
            (SettingType::Number { least, most, zero, .. }, SettingValue::Number(number)) => {
                (*least..=*most).contains(number) || (*number == 0 && !zero.is_empty())
            }
            (SettingType::Switch, SettingValue::Switch(_)) => true,
            (SettingType::Word(words), SettingValue::Word(word)) => words.contains(&word.as_str()),
            (SettingType::Text(_), _) => true,
            _ => false,
        }
    }
}

/// Writes the allowed values.
impl fmt::Display for SettingType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingType::Number { least: 0, most, unit, .. } => {
                write!(formatter, "at most {most} {unit}")
            }
            SettingType::Number { least, most, zero: "", unit } => {
                write!(formatter, "{least} to {most} {unit}")
            }
            SettingType::Number { least, most, zero, unit } => {
                write!(formatter, "0 ({zero}) or {least} to {most} {unit}")
            }
            SettingType::Switch => formatter.write_str("on or off"),
            SettingType::Word([first, second]) => write!(formatter, "{first} or {second}"),
            SettingType::Word(words) => write!(formatter, "one of {}", words.join(", ")),
            SettingType::Text(form) => formatter.write_str(form),
        }
    }
}

/// A setting of `S`: its name, its allowed values, its meaning, and the field that has its value.
///
/// Commands, the control protocol, the configuration file and reports know a setting from its row
/// alone.
#[derive(Debug)]
pub struct Setting<S: 'static> {
    /// The name in commands, in JSON and in the configuration file.
    pub name: &'static str,
    /// The type of its values.
    pub values: SettingType,
    /// The meaning, as a sentence for users.
    pub help: &'static str,
    pub(super) field: FieldOf<S>,
}

/// Why a value cannot be stored in the field of a setting.
#[derive(Debug)]
pub(super) enum ValueRefusal {
    /// The value is not one of the allowed values; the message then lists these.
    NotAllowed,
    /// The value is allowed in general, but cannot be used for this reason.
    Because(String),
}

/// Functions that read and write the field of `S` that holds a setting.
#[derive(Debug)]
pub(super) struct FieldOf<S> {
    pub(super) get: fn(&S) -> SettingValue,
    /// A function that stores a value that the setting's type allows.
    pub(super) set: fn(&mut S, &SettingValue) -> Result<(), ValueRefusal>,
}

impl<S> Setting<S> {
    /// Returns the value of the setting.
    pub fn get(&self, settings: &S) -> SettingValue {
        (self.field.get)(settings)
    }

    /// Checks that the type of the setting allows a value.
    ///
    /// # Errors
    /// Returns a message for users with the allowed values.
    pub fn check(&self, value: &SettingValue) -> Result<(), String> {
        match self.values.allows(value) {
            true => Ok(()),
            false => Err(self.refused(value)),
        }
    }

    /// Sets the setting.
    ///
    /// # Errors
    /// Returns a message for users if the value is not allowed; nothing changes.
    pub fn set(&self, settings: &mut S, value: &SettingValue) -> Result<(), String> {
        self.check(value)?;
        (self.field.set)(settings, value).map_err(|refusal| match refusal {
            ValueRefusal::NotAllowed => self.refused(value),
            ValueRefusal::Because(problem) => format!("{}: {problem}", self.name),
        })
    }

    fn refused(&self, value: &SettingValue) -> String {
        let Setting { name, values, .. } = self;
        match value {
            SettingValue::Word(word) => format!("{name} is {values}, not {word:?}"),
            value => format!("{name} is {values}, not {value}"),
        }
    }
}

/// Settings that are read and changed by their names.
pub trait NamedSettings: Sized + 'static {
    /// The settings, in the order in which they are listed.
    const SETTINGS: &'static [Setting<Self>];

    /// The owner of the settings in error messages, such as `a port`.
    const OWNER: &'static str;

    /// Finds a setting by its name.
    ///
    /// # Errors
    /// Returns a message for users that lists all names.
    fn setting(name: &str) -> Result<&'static Setting<Self>, String> {
        Self::SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
            let names = Self::SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>();
            let (owner, names) = (Self::OWNER, names.join(", "));
            format!("{name:?} is not a setting of {owner}; choose one of {names}")
        })
    }

    /// Sets the setting with this name.
    ///
    /// # Errors
    /// Returns a message for users if the name is unknown or the value is not allowed; nothing
    /// changes.
    fn set(&mut self, name: &str, value: impl Into<SettingValue>) -> Result<(), String> {
        Self::setting(name)?.set(self, &value.into())
    }

    /// Returns the values of all settings by name.
    fn values(&self) -> BTreeMap<String, SettingValue> {
        let value = |setting: &Setting<Self>| (setting.name.to_owned(), setting.get(self));
        Self::SETTINGS.iter().map(value).collect()
    }
}

/// A type of fields that hold a setting.
pub(super) trait FieldType: Sized {
    /// Returns the value in the form that commands and files use.
    fn to_value(&self) -> SettingValue;

    /// Converts a value that the setting's type allows to the type of the field.
    fn from_value(value: &SettingValue) -> Result<Self, ValueRefusal>;
}

/// Implements [`FieldType`] for unsigned integers.
macro_rules! number_fields {
    ($($number:ty),+) => { $(
        impl FieldType for $number {
            fn to_value(&self) -> SettingValue {
                SettingValue::Number(*self as u64)
            }

            fn from_value(value: &SettingValue) -> Result<Self, ValueRefusal> {
                match value {
                    SettingValue::Number(number) => {
                        <$number>::try_from(*number).map_err(|_| ValueRefusal::NotAllowed)
                    }
                    _ => Err(ValueRefusal::NotAllowed),
                }
            }
        }
    )+ };
}

number_fields!(u32, u64, usize);

impl FieldType for bool {
    fn to_value(&self) -> SettingValue {
        SettingValue::Switch(*self)
    }

    fn from_value(value: &SettingValue) -> Result<Self, ValueRefusal> {
        match value {
            SettingValue::Switch(on) => Ok(*on),
            _ => Err(ValueRefusal::NotAllowed),
        }
    }
}

/// A type of fields whose values are named by words, such as an enumeration.
pub(super) trait WordField: Copy + PartialEq + 'static {
    /// The names of the values.
    const WORDS: &'static [&'static str];

    /// The values of the field's type, in the order of their names in [`WORDS`](Self::WORDS).
    const VALUES: &'static [Self];
}

/// Implements [`WordField`] for an enumeration.
macro_rules! word_field {
    ($enumeration:ident: $($word:literal => $variant:ident),+) => {
        impl WordField for $enumeration {
            const WORDS: &'static [&'static str] = &[$($word),+];
            const VALUES: &'static [Self] = &[$($enumeration::$variant),+];
        }
    };
}
pub(super) use word_field;

impl<E: WordField> FieldType for E {
    fn to_value(&self) -> SettingValue {
        let mut named = E::WORDS.iter().zip(E::VALUES);
        named.find(|(_, value)| *value == self).map_or("", |(word, _)| word).into()
    }

    fn from_value(value: &SettingValue) -> Result<Self, ValueRefusal> {
        let mut named = E::WORDS.iter().zip(E::VALUES);
        let text = value.to_string();
        named
            .find(|(word, _)| **word == text)
            .map(|(_, value)| *value)
            .ok_or(ValueRefusal::NotAllowed)
    }
}

/// Returns the `FieldOf` for a field given by its path, such as `field!(limits.gso_max_size)`.
macro_rules! field {
    ($($part:ident).+) => {
        FieldOf {
            get: |settings| settings.$($part).+.to_value(),
            set: |settings, value| {
                settings.$($part).+ = FieldType::from_value(value)?;
                Ok(())
            },
        }
    };
}
pub(super) use field;

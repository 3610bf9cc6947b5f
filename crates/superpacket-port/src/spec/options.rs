//! The options of a port string, and typed access to their values.

use std::str::FromStr;

use super::error::SpecError;

/// The options of a port string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecOptions {
    pub(super) port: String,
    pub(super) pairs: Vec<(String, String)>,
}

impl SpecOptions {
    pub(super) fn parse(port: &str, text: &str, separator: char) -> Result<Self, SpecError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in text.split(separator).filter(|part| !part.is_empty()) {
            let wrong = |problem: &str| SpecError::Option {
                port: port.into(),
                option: part.into(),
                problem: problem.into(),
            };
            let (key, value) =
                part.split_once('=').ok_or_else(|| wrong("has no value: write option=value"))?;
            if pairs.iter().any(|(known, _)| known == key) {
                return Err(wrong("is there twice"));
            }
            pairs.push((key.into(), value.into()));
        }
        Ok(SpecOptions { port: port.into(), pairs })
    }

    /// Returns an option's value as written.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Returns an option's value parsed as `T`, or `default` if the option is absent.
    ///
    /// # Errors
    /// [`SpecError::Option`] with the text `expected`.
    pub fn value<T: FromStr>(&self, key: &str, expected: &str, default: T) -> Result<T, SpecError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|_| self.wrong(key, expected)),
        }
    }

    /// Returns an option's value in bytes, or `default` if the option is absent. A suffix `k` or
    /// `m` multiplies by 1,024 or 1,048,576.
    ///
    /// # Errors
    /// [`SpecError::Option`] for other values.
    pub fn bytes(&self, key: &str, default: usize) -> Result<usize, SpecError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let lower = value.to_ascii_lowercase();
        let (digits, unit) = match lower
            .strip_suffix('k')
            .map(|digits| (digits, 1 << 10))
            .or(lower.strip_suffix('m').map(|digits| (digits, 1 << 20)))
        {
            Some(scaled) => scaled,
            None => (lower.as_str(), 1),
        };
        let bytes = digits.parse::<usize>().ok().and_then(|digits| digits.checked_mul(unit));
        bytes.ok_or_else(|| self.wrong(key, "takes a number of bytes: 2048, 4k, 1m"))
    }

    /// Returns the value that `choices` gives to an option's word, or `default` if the option is
    /// absent.
    ///
    /// # Errors
    /// [`SpecError::Option`] for other words, with the words of `choices`.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, SpecError> {
        let Some(word) = self.get(key) else { return Ok(default) };
        let found = choices.iter().find(|(known, _)| *known == word);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            let (last, others) = words.split_last().unwrap_or((&"nothing", &[]));
            self.wrong(key, &format!("takes {} or {last}", others.join(", ")))
        })
    }

    /// Returns whether a switch option is `on`, or `default` if the option is absent. Any value but
    /// `on` and `off` is an error.
    ///
    /// # Errors
    /// [`SpecError::Option`] for other words.
    pub fn switch(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        self.choice(key, default, &[("on", true), ("off", false)])
    }

    /// Returns an error about the option `key`, with a phrase that says what is wrong with it.
    pub fn wrong(&self, key: &str, problem: &str) -> SpecError {
        let option = self.get(key).map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
        SpecError::Option { port: self.port.clone(), option, problem: problem.into() }
    }

    /// Refuses all options except those in `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), SpecError> {
        match self.pairs.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => {
                Err(self.wrong(key, "is not known: this kind of port has none"))
            }
            Some((key, _)) => Err(self
                .wrong(key, &format!("is not known: this kind of port has {}", known.join(", ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PortSpec;

    #[test]
    fn values_are_read_with_their_units() {
        let spec: PortSpec =
            "packet:eth0?ring=4m&slot=2k&fanout=3&outgoing=on".parse().expect("well formed");
        let options = spec.options();
        assert_eq!(
            (options.bytes("ring", 0), options.bytes("slot", 0), options.bytes("none", 5)),
            (Ok(4 << 20), Ok(2048), Ok(5))
        );
        assert_eq!(
            (options.value("fanout", "takes a number", 0), options.switch("outgoing", false)),
            (Ok(3u16), Ok(true))
        );
        assert!(
            options
                .bytes("outgoing", 0)
                .expect_err("no number")
                .to_string()
                .contains("outgoing=on")
        );
        assert!(
            options
                .only(&["ring", "slot", "fanout"])
                .expect_err("one more")
                .to_string()
                .contains("ring, slot, fanout")
        );
    }
}

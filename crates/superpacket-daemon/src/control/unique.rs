//! Parsing of JSON objects without duplicate keys, whose meaning would depend on the parser.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A JSON object without duplicate keys at any depth.
#[derive(Debug)]
pub(super) struct UniqueObject(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = UniqueObject;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<UniqueObject, A::Error> {
                object(entries).map(UniqueObject)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A JSON value without duplicate keys in its objects.
struct UniqueValue(Value);

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = UniqueValue;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<UniqueValue, E> {
                Ok(UniqueValue(Value::Null))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<UniqueValue, E> {
                Ok(UniqueValue(value.into()))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(value.into()))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(value.into()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<UniqueValue, E> {
                Ok(UniqueValue(value.into()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<UniqueValue, E> {
                Ok(UniqueValue(value.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut elements: A,
            ) -> Result<UniqueValue, A::Error> {
                let mut all = Vec::new();
                while let Some(UniqueValue(value)) = elements.next_element()? {
                    all.push(value);
                }
                Ok(UniqueValue(all.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<UniqueValue, A::Error> {
                Ok(UniqueValue(object(entries)?.into()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Collects the entries of an object.
///
/// # Errors
/// Returns an error if a key occurs twice.
fn object<'de, A: MapAccess<'de>>(mut entries: A) -> Result<Map<String, Value>, A::Error> {
    let mut all = Map::new();
    while let Some(key) = entries.next_key::<String>()? {
        if all.contains_key(&key) {
            return Err(A::Error::custom(format_args!("the key {key:?} occurs twice")));
        }
        let UniqueValue(value) = entries.next_value()?;
        all.insert(key, value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_as_without_the_check() {
        let text = r#"{"a":[null,true,-1,18446744073709551615,1.5,"t\u00e9"],"b":{"a":{"a":[]}}}"#;
        let UniqueObject(read) = serde_json::from_str(text).expect("no duplicate key");
        assert_eq!(Value::from(read), serde_json::from_str::<Value>(text).expect("JSON"));
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth() {
        for text in [
            r#"{"k":1,"k":1}"#,
            r#"{"a":{"k":1,"b":2,"k":3}}"#,
            r#"{"a":[[{"k":{},"\u006b":{}}]]}"#,
        ] {
            let error = serde_json::from_str::<UniqueObject>(text).expect_err(text).to_string();
            assert!(error.starts_with("the key \"k\" occurs twice at line 1"), "{error}");
        }
        assert!(
            serde_json::from_str::<UniqueObject>("[]")
                .expect_err("no object")
                .to_string()
                .contains("expected an object")
        );
    }
}

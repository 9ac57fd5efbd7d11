//! How much a schema's `multipleOf` would cost. Pure.

use serde_json::Value;

/// An upper bound for the states that all `multipleOf` of a schema together need: each whole number needs as many as it
/// says, combined ones the product, fractions ten times as many a digit.
pub(super) fn states(schema: &Value) -> f64 {
    let mut found = Vec::new();
    collect(schema, &mut found);
    found.sort_unstable_by(f64::total_cmp);
    found.dedup();
    let finest = found.iter().map(|divisor| decimals(*divisor)).max().unwrap_or(0);
    let whole = |divisor: &f64| (divisor * 10f64.powi(decimals(*divisor))).max(1.0);
    found.iter().map(whole).product::<f64>() * 10f64.powi(finest)
}

/// The parser of the schema bounds how deep it is.
fn collect(schema: &Value, found: &mut Vec<f64>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_f64().filter(|_| name == "multipleOf") {
                    Some(divisor) => found.push(divisor.abs()),
                    None => collect(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

/// Digits behind the point.
fn decimals(number: f64) -> i32 {
    (0..30).find(|digits| (number * 10f64.powi(*digits)).fract() == 0.0).unwrap_or(30)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_bound_grows_with_what_is_combined() {
        assert_eq!(states(&json!({"type": "integer"})), 1.0);
        assert_eq!(states(&json!({"properties": {"a": {"multipleOf": 5}, "b": {"multipleOf": 5}}})), 5.0);
        assert_eq!(states(&json!({"multipleOf": 0.01})), 100.0);
        assert_eq!(states(&json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]})), 997.0 * 991.0);
        assert!(states(&json!({"multipleOf": 1e-300})) > 1e20);
    }
}

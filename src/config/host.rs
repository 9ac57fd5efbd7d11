//! Names of hosts that a URL may lead to. Pure: nothing here is looked up.

use url::Host;

/// A host, or all hosts below a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPattern {
    /// As a parsed URL holds it: lower case, IDNA, no dot at the end.
    name: String,
    below: bool,
}

impl HostPattern {
    /// `example.org`, `*.example.org` (not `example.org` itself), or an address as a URL writes it. `None` for what is no host.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let host = Host::parse(name).ok()?;
        let is_name = matches!(host, Host::Domain(_));
        if name.contains('*') || (below && !is_name) {
            return None;
        }
        let name = without_dot(&host.to_string()).to_owned();
        (!name.is_empty()).then_some(Self { name, below })
    }

    /// Whether a parsed URL's host is meant. A dot at its end makes no difference.
    pub(crate) fn matches(&self, host: &str) -> bool {
        let host = without_dot(host);
        if self.below {
            host.strip_suffix(&self.name).and_then(|rest| rest.strip_suffix('.')).is_some_and(|rest| !rest.is_empty())
        } else {
            host.eq_ignore_ascii_case(&self.name)
        }
    }
}

fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_as_urls_write_them() {
        for (pattern, url, matches) in [
            ("example.org", "http://example.org/", true),
            ("Example.ORG.", "http://eXample.org./", true),
            ("example.org", "http://www.example.org/", false),
            ("example.org", "http://badexample.org/", false),
            ("*.example.org", "http://www.example.org/", true),
            ("*.Example.org", "http://a.b.EXAMPLE.org.:8080/", true),
            ("*.example.org", "http://example.org/", false),
            ("*.example.org", "http://.example.org/", false),
            ("*.example.org", "http://badexample.org/", false),
            ("*.example.org", "http://example.org.evil.test/", false),
            ("bücher.example", "http://xn--bcher-kva.example/", true),
            ("xn--bcher-kva.example", "http://BÜCHER.example/", true),
            ("192.0.2.1", "http://192.0.2.1/", true),
            ("192.0.2.1", "http://0xc0.0.2.1/", true),
            ("[2001:db8::1]", "http://[2001:DB8:0::1]/", true),
        ] {
            let url = url::Url::parse(url).expect("a URL");
            let pattern = HostPattern::parse(pattern).expect("a pattern");
            assert_eq!(pattern.matches(url.host_str().expect("a host")), matches, "{pattern:?} {url}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in
            ["", "*", "*.", ".", "a.*", "*.*.org", "http://a.org", "a.org:80", "a b", "a/b", "*.192.0.2.1", "u@a.org"]
        {
            assert_eq!(HostPattern::parse(text), None, "{text}");
        }
    }
}

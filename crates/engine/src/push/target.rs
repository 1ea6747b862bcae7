//! Which targets a push may have: public ones over https, and whatever else the operator allows by name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;

/// Ports that any target may have.
const PORTS: [u16; 2] = [443, 8443];

/// Why a target is not sent to. It names the host, never the rest of the address, where a secret may stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target is not allowed: {0}")]
pub struct Refusal(String);

impl Refusal {
    /// The code of a step that fails with it.
    pub const CODE: &'static str = "target_not_allowed";
}

/// What the operator allows beyond the public internet: names, addresses and networks, each with a port or for all ports.
/// What is listed may be spoken to without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Net { base: IpAddr, prefix: u8 },
}

/// An entry that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name, an address or a network, with or without a port: write `localhost`, `10.0.0.0/8` or `host:8080`"
)]
pub struct BadEntry(String);

impl Allow {
    pub fn parse<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Allow, BadEntry> {
        let entries = entries.into_iter().map(|entry| {
            let text = entry.as_ref().trim();
            Entry::parse(text).ok_or_else(|| BadEntry(text.to_owned()))
        });
        entries.collect::<Result<_, _>>().map(Allow)
    }

    fn has_name(&self, name: &str, port: u16) -> bool {
        self.at(port).any(|host| matches!(host, Host::Name(known) if known == name))
    }

    fn has_address(&self, address: IpAddr, port: u16) -> bool {
        let covers = |host: &Host| matches!(host, Host::Net { base, prefix } if is_in(address, *base, *prefix));
        self.at(port).any(covers)
    }

    fn at(&self, port: u16) -> impl Iterator<Item = &Host> {
        self.0.iter().filter(move |entry| entry.port.is_none_or(|only| only == port)).map(|entry| &entry.host)
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Entry> {
        if let Some((base, prefix)) = text.split_once('/') {
            let (base, prefix) = (base.parse::<IpAddr>().ok()?, prefix.parse().ok()?);
            let most = if base.is_ipv4() { 32 } else { 128 };
            return (prefix <= most).then_some(Entry { host: Host::Net { base, prefix }, port: None });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Entry { host: Host::address(address), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Entry { host: Host::address(address), port });
        }
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        is_name.then(|| Entry { host: Host::Name(host.trim_end_matches('.').to_ascii_lowercase()), port })
    }
}

impl Host {
    fn address(address: IpAddr) -> Host {
        let base = address.to_canonical();
        Host::Net { base, prefix: if base.is_ipv4() { 32 } else { 128 } }
    }
}

/// A URL that may be sent to, as far as can be told without looking its name up.
#[derive(Clone, Debug)]
pub struct Target {
    pub url: Url,
    /// As people write it: without brackets, or a dot at its end.
    pub host: String,
    pub port: u16,
    /// The operator listed this very host.
    listed: bool,
}

impl Target {
    pub fn parse(url: &str, allow: &Allow) -> Result<Target, Refusal> {
        // What does not parse may be a secret in the wrong place: it is not repeated.
        let url = Url::parse(url).map_err(|error| Refusal(format!("it is not a URL ({error})")))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(Refusal(format!("the scheme is {}, not https", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal("a user or password stands in the URL; send a header".into()));
        }
        let Some(host) = url.host_str().map(|host| host.trim_matches(['[', ']']).trim_end_matches('.').to_owned())
        else {
            return Err(Refusal("it has no host".into()));
        };
        let port = url.port_or_known_default().unwrap_or(443);
        let listed = match host.parse::<IpAddr>() {
            Ok(address) => {
                check_address(&host, address, port, allow)?;
                allow.has_address(address.to_canonical(), port)
            }
            Err(_) => allow.has_name(&host, port),
        };
        let target = Target { url, host, port, listed };
        if !listed {
            target.check_unlisted()?;
        }
        Ok(target)
    }

    fn check_unlisted(&self) -> Result<(), Refusal> {
        let Target { host, port, .. } = self;
        if host.is_empty() || host == "localhost" || host.ends_with(".localhost") {
            return Err(Refusal(format!("{host:?} is this machine")));
        }
        if self.url.scheme() != "https" {
            return Err(Refusal(format!("{host} is not in the operator's allow-list, so only https is sent to it")));
        }
        if !PORTS.contains(port) {
            return Err(Refusal(format!("port {port} of {host} is neither 443 nor 8443")));
        }
        Ok(())
    }

    /// One address that must not be dialled is enough to refuse them all: a name that is public and private at once is a
    /// trick.
    pub fn check_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>, allow: &Allow) -> Result<(), Refusal> {
        if self.listed {
            return Ok(());
        }
        addresses.into_iter().try_for_each(|address| check_address(&self.host, address, self.port, allow))
    }
}

/// Whether a URL that stands in a document can be sent to, without looking its name up.
pub fn check_url(url: &str, allow: &Allow) -> Result<(), Refusal> {
    Target::parse(url, allow).map(drop)
}

/// An address that a person's browser is sent to, normalised: `https`, or a host that the operator listed.
pub fn check_link(url: &str, allow: &Allow) -> Result<Url, Refusal> {
    let url = Url::parse(url).map_err(|error| Refusal(format!("it is not a URL ({error})")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refusal("a user or password stands in the URL".into()));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if Target::parse(url.as_str(), allow).is_ok() => Ok(url),
        scheme => {
            Err(Refusal(format!("the scheme is {scheme}, not https, and its host is not in the operator's allow-list")))
        }
    }
}

fn check_address(host: &str, address: IpAddr, port: u16, allow: &Allow) -> Result<(), Refusal> {
    let address = address.to_canonical();
    if is_public(address) || allow.has_address(address, port) {
        return Ok(());
    }
    Err(Refusal(format!("{host} is {address}, which is not a public address")))
}

/// Neither private nor of any special use (IANA's registries), nor a v4 address in disguise.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|(base, prefix)| is_in(address.into(), (*base).into(), *prefix)),
        // Only 2000::/3 is given out; loopback, mapped, NAT64, unique local, link local and multicast are outside of it.
        IpAddr::V6(address) => {
            let is_in = |base: Ipv6Addr, prefix| is_in(address.into(), base.into(), prefix);
            is_in(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3)
                && !SPECIAL_V6.iter().any(|(base, prefix)| is_in(*base, *prefix))
        }
    }
}

const SPECIAL_V4: [(Ipv4Addr, u8); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Teredo, benchmarks and the like; documentation; 6to4, which carries a v4 address.
const SPECIAL_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

fn is_in(address: IpAddr, base: IpAddr, prefix: u8) -> bool {
    let same = |address: u128, base: u128, width: u32| {
        let drop = width.saturating_sub(u32::from(prefix));
        address.checked_shr(drop).unwrap_or(0) == base.checked_shr(drop).unwrap_or(0)
    };
    match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => same(address.to_bits().into(), base.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(base)) => same(address.to_bits(), base.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, allow: &[&str]) -> Option<String> {
        let allow = Allow::parse(allow).expect("a list");
        check_url(url, &allow).err().map(|refusal| refusal.to_string())
    }

    #[test]
    fn what_is_not_a_public_https_target_is_refused() {
        let table = [
            ("file:///etc/passwd", "scheme is file"),
            ("gopher://example.com/", "scheme is gopher"),
            ("ftp://example.com/", "scheme is ftp"),
            ("http://example.com/", "only https"),
            ("https://user@example.com/", "user or password"),
            ("https://user:word@example.com/", "user or password"),
            ("https://:word@example.com/", "user or password"),
            ("https://example.com:22/", "port 22"),
            ("https://example.com:80/", "port 80"),
            ("https://localhost/", "this machine"),
            ("https://LOCALHOST./", "this machine"),
            ("https://a.localhost/", "this machine"),
            ("https://127.0.0.1/", "127.0.0.1"),
            ("https://127.1/", "127.0.0.1"),
            ("https://0x7f000001/", "127.0.0.1"),
            ("https://2130706433/", "127.0.0.1"),
            ("https://0177.0.0.1/", "127.0.0.1"),
            ("https://0/", "0.0.0.0"),
            ("https://[::1]/", "::1"),
            ("https://[::]/", "::"),
            ("https://[::ffff:10.0.0.1]/", "10.0.0.1"),
            ("https://[::10.0.0.1]/", "not a public"),
            ("https://[64:ff9b::a00:1]/", "64:ff9b"),
            ("https://[64:ff9b:1::a00:1]/", "64:ff9b"),
            ("https://[2002:a00:1::]/", "2002:"),
            ("https://[2001::1]/", "2001:"),
            ("https://[2001:db8::1]/", "2001:db8"),
            ("https://[fc00::1]/", "fc00"),
            ("https://[fe80::1]/", "fe80"),
            ("https://[ff02::1]/", "ff02"),
            ("https://10.1.2.3/", "10.1.2.3"),
            ("https://172.31.0.1/", "172.31.0.1"),
            ("https://192.168.1.1/", "192.168.1.1"),
            ("https://169.254.169.254/latest", "169.254.169.254"),
            ("https://100.64.0.1/", "100.64.0.1"),
            ("https://100.127.255.255/", "100.127"),
            ("https://198.19.0.1/", "198.19"),
            ("https://224.0.0.1/", "224.0.0.1"),
            ("https://255.255.255.255/", "255.255"),
            ("not a url", "not a URL"),
            ("https://", "not a URL"),
            ("", "not a URL"),
        ];
        for (url, why) in table {
            let refusal = refused(url, &[]).unwrap_or_else(|| panic!("{url} is allowed"));
            assert!(refusal.contains(why), "{url}: {refusal}");
        }
    }

    #[test]
    fn public_https_targets_are_allowed() {
        for url in [
            "https://example.com/a?b=c",
            "https://example.com:8443/",
            "https://8.8.8.8/",
            "https://172.32.0.1/",
            "https://100.128.0.1/",
            "https://[2606:4700::1111]/",
            "https://xn--bcher-kva.example/",
        ] {
            assert_eq!(refused(url, &[]), None, "{url}");
        }
    }

    #[test]
    fn the_operator_allows_names_addresses_networks_and_ports() {
        let table: [(&str, &[&str], bool); 16] = [
            ("http://127.0.0.1:8080/", &["127.0.0.1"], true),
            ("http://127.0.0.1:8080/", &["127.0.0.1:8080"], true),
            ("http://127.0.0.1:8081/", &["127.0.0.1:8080"], false),
            ("http://127.0.0.2/", &["127.0.0.1"], false),
            ("http://127.1/", &["127.0.0.1"], true),
            ("http://10.9.8.7/", &["10.0.0.0/8"], true),
            ("http://[::ffff:10.9.8.7]/", &["10.0.0.0/8"], true),
            ("http://11.9.8.7/", &["10.0.0.0/8"], false),
            ("http://localhost:3000/", &["localhost"], true),
            ("http://localhost:3000/", &["localhost:3001"], false),
            ("http://LocalHost.:3000/", &["localhost:3000"], true),
            ("http://[::1]:3000/", &["[::1]:3000"], true),
            ("http://[::1]:3000/", &["::1"], true),
            ("http://[fd00::5]/", &["fd00::/8"], true),
            ("file://localhost/etc/passwd", &["localhost"], false),
            ("http://user@localhost/", &["localhost"], false),
        ];
        for (url, allow, may) in table {
            assert_eq!(refused(url, allow).is_none(), may, "{url} with {allow:?}");
        }
    }

    #[test]
    fn an_entry_that_says_nothing_is_named() {
        for entry in ["", "10.0.0.0/33", "http://host", "host:port", "a b", "::/129"] {
            assert!(Allow::parse([entry]).is_err(), "{entry:?}");
        }
    }

    #[test]
    fn one_private_address_of_a_name_refuses_them_all() {
        let allow = Allow::parse(["10.0.0.0/8", "known.example:8443"]).expect("a list");
        let (public, private, listed) = ("8.8.8.8", "192.168.0.1", "10.0.0.1");
        let checked = |url: &str, addresses: &[&str]| {
            let target = Target::parse(url, &allow).expect("the URL passes");
            target.check_addresses(addresses.iter().map(|text| text.parse().expect("an address")), &allow).is_ok()
        };
        assert!(checked("https://example.com/", &[public]));
        assert!(checked("https://example.com/", &[public, listed]));
        assert!(!checked("https://example.com/", &[public, private]));
        assert!(!checked("https://example.com/", &["::ffff:192.168.0.1"]));
        assert!(checked("http://known.example:8443/", &[private]));
        assert!(!checked("https://known.example/", &[private]));
    }
}

//! Which network addresses a stranger's URL may lead to: only those on the public internet.
//!
//! Pure. The lists are IANA's special-purpose registries (RFC 6890 and what followed).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who can reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Anyone on the internet.
    Public,
    /// Those on this network or machine.
    Private,
    /// Those on this link or machine, and this machine may find its keys there: link-local addresses, and the metadata
    /// services of large clouds that have others, as far as we know them. No place for videos, and never fetched from, not
    /// even where private addresses are allowed.
    Metadata,
}

/// Who can reach an address.
pub(super) fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    let [a, b, c, d] = address.octets();
    if address.is_link_local() || METADATA.contains(&[a, b, c, d]) {
        return Reach::Metadata;
    }
    let special = a == 0
        || address.is_private()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_documentation()
        || (a == 100 && (64..128).contains(&b)) // carrier-grade NAT
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 192 && b == 88 && c == 99) // 6to4 relays
        || (a == 198 && (18..20).contains(&b)) // benchmarks
        || a >= 240; // reserved and broadcast
    if special { Reach::Private } else { Reach::Public }
}

/// Metadata services that are not link-local, on three large clouds. One of them looks public.
const METADATA: [[u8; 4]; 3] = [[100, 100, 100, 200], [168, 63, 129, 16], [192, 0, 0, 192]];

fn reach_v6(address: Ipv6Addr) -> Reach {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    // An embedded address that is no route of its own: never public, and metadata stays metadata.
    let at_most_private = |reach| if reach == Reach::Metadata { reach } else { Reach::Private };
    match segments {
        // Metadata services at unique-local addresses, on three large clouds; one of them has a block of its own for services.
        [0xfd00, 0xec2, ..] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] | [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe] => {
            Reach::Metadata
        }
        // Unspecified, loopback, and the old IPv4-compatible form.
        [0, 0, 0, 0, 0, 0, high, low] => at_most_private(embedded(high, low)),
        // IPv4-mapped, and IPv4-translated.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => embedded(high, low),
        // NAT64, and its local prefix.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, 1, _, _, _, high, low] => at_most_private(embedded(high, low)),
        // 6to4.
        [0x2002, high, low, ..] => embedded(high, low),
        _ if address.is_unicast_link_local() => Reach::Metadata,
        // Protocol assignments (Teredo among them), and documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => Reach::Private,
        // Only 2000::/3 is given out to the internet, less a second block for documentation.
        [first, second, ..] if (0x2000..0x4000).contains(&first) && !(first == 0x3fff && second < 0x1000) => {
            Reach::Public
        }
        _ => Reach::Private,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_addresses_are_known_in_every_form() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd00:ec2:1::1",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
        ] {
            assert_eq!(reach(address.parse().expect("an address")), Reach::Metadata, "{address}");
        }
    }

    #[test]
    fn only_the_public_internet_is_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.5",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:c0a8:101::",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
        ] {
            assert_eq!(reach(address.parse().expect(address)), Reach::Private, "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert_eq!(reach(address.parse().expect(address)), Reach::Public, "{address}");
        }
    }
}

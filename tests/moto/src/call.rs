//! One request of AWS's query protocol.

use hyper::{HeaderMap, Uri};

/// The version of EC2's API, by which its requests are recognized. Its pages and errors have another form than ELB's.
const EC2: &str = "2016-11-15";
/// The version of the API of Classic Load Balancers.
const CLASSIC: &str = "2012-06-01";

/// A request.
#[derive(Clone)]
pub(crate) struct Call {
    /// Its path.
    pub path: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its parameters, in order.
    pub pairs: Vec<(String, String)>,
}

impl Call {
    /// Returns the value of a parameter; empty if it is missing.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns the action.
    pub(crate) fn action(&self) -> &str {
        self.value("Action")
    }

    /// Returns true for a call to EC2.
    pub(crate) fn is_ec2(&self) -> bool {
        self.value("Version") == EC2
    }

    /// Returns true for a call to the API of Classic Load Balancers.
    pub(crate) fn is_classic(&self) -> bool {
        self.value("Version") == CLASSIC
    }

    /// Returns the values of all parameters whose name has this start and end.
    pub(crate) fn values(&self, start: &str, end: &str) -> Vec<&str> {
        let named = self.pairs.iter().filter(|(name, _)| name.starts_with(start) && name.ends_with(end));
        named.map(|(_, value)| value.as_str()).collect()
    }

    #[cfg(test)]
    pub(crate) fn of(action: &str, pairs: &[(&str, &str)]) -> Self {
        let pairs = [&[("Action", action)], pairs].concat();
        let pairs = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { path: Uri::from_static("/"), headers: HeaderMap::new(), pairs }
    }
}

//! A key that signs tokens or certificates: RSA or ECDSA, read from PEM. Its id is the hash of its public key.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use zeroize::{Zeroize as _, Zeroizing};

use super::der::{OCTET_STRING, SEQUENCE, bits, der, nested, unsigned};

/// The reason why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no private key.
    #[error("holds no private key; give a PEM file with a block RSA PRIVATE KEY, EC PRIVATE KEY or PRIVATE KEY")]
    Missing,
    /// The private key has an unsupported type.
    #[error(
        "holds a private key that cannot be used ({0}); give an RSA key of 2048 to 4096 bits, or an ECDSA key on \
         P-256 or P-384"
    )]
    Refused(String),
    /// Signing failed.
    #[error("cannot sign: the system provides no random numbers")]
    Sign,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(Box<EcdsaKeyPair>, &'static Curve),
}

/// An elliptic curve of supported keys.
struct Curve {
    algorithm: &'static EcdsaSigningAlgorithm,
    /// The name of its algorithm in tokens.
    name: &'static str,
    /// Its object identifier, as DER.
    id: &'static [u8],
    /// The object identifier of its signatures in certificates, as DER.
    signature_id: &'static [u8],
}

static CURVES: [Curve; 2] = [
    Curve {
        algorithm: &ECDSA_P256_SHA256_FIXED_SIGNING,
        name: "ES256",
        id: &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        signature_id: &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],
    },
    Curve {
        algorithm: &ECDSA_P384_SHA384_FIXED_SIGNING,
        name: "ES384",
        id: &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22],
        signature_id: &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03],
    },
];

/// `rsaEncryption` with the parameters `NULL`, as DER.
const RSA_ID: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// `sha256WithRSAEncryption` with the parameters `NULL`, as DER.
const RSA_SIGNATURE_ID: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b, 0x05, 0x00];
/// `id-ecPublicKey`, as DER.
const EC_ID: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

/// A key that signs tokens or certificates. It is never printed.
pub struct SigningKey {
    pair: Pair,
    id: String,
    random: SystemRandom,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Reads the first private key of a PEM text: PKCS #1, PKCS #8 or SEC 1. Upstream: client-go, util/keyutil,
    /// ParsePrivateKeyPEM.
    ///
    /// # Errors
    /// When there is no private key, or its type cannot be used.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let mut der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| KeyError::Missing)?;
        let pair = match &der {
            PrivateKeyDer::Pkcs1(key) => rsa(RsaKeyPair::from_der(key.secret_pkcs1_der())),
            PrivateKeyDer::Sec1(key) => ecdsa(|curve| sec1_in_pkcs8(curve, key.secret_sec1_der())),
            PrivateKeyDer::Pkcs8(key) => {
                let key = key.secret_pkcs8_der();
                ecdsa(|_| Zeroizing::new(key.to_vec())).or_else(|_| rsa(RsaKeyPair::from_pkcs8(key)))
            }
            _ => Err(KeyError::Missing),
        };
        der.zeroize();
        let pair = pair?;
        let id = BASE64_URL.encode(digest::digest(&digest::SHA256, &public_key(&pair)));
        Ok(Self { pair, id, random: SystemRandom::new() })
    }

    /// Returns the key's id, which is `kid` in tokens. Upstream: pkg/serviceaccount, keyIDFromPublicKey.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns a signed JWT with these claims.
    ///
    /// # Errors
    /// When the system provides no random numbers.
    pub fn token(&self, claims: &Value) -> Result<String, KeyError> {
        let algorithm = match &self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Ecdsa(_, curve) => curve.name,
        };
        let header = json!({"alg": algorithm, "kid": self.id});
        let mut token = BASE64_URL.encode(header.to_string());
        token.push('.');
        BASE64_URL.encode_string(claims.to_string(), &mut token);
        let signature = self.sign(token.as_bytes())?;
        token.push('.');
        BASE64_URL.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Returns the public key as `SubjectPublicKeyInfo`.
    pub fn public_key(&self) -> Vec<u8> {
        public_key(&self.pair)
    }

    /// Returns the algorithm of this key's signatures in certificates, as `AlgorithmIdentifier`.
    pub fn certificate_algorithm(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(_) => der(SEQUENCE, RSA_SIGNATURE_ID),
            Pair::Ecdsa(_, curve) => der(SEQUENCE, curve.signature_id),
        }
    }

    /// Returns a signature in the form that certificates have.
    ///
    /// # Errors
    /// When the system provides no random numbers.
    pub fn sign_certificate(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.sign(message)?;
        Ok(match &self.pair {
            Pair::Rsa(_) => signature,
            Pair::Ecdsa(..) => {
                let (r, s) = signature.split_at(signature.len() / 2);
                nested(SEQUENCE, &[&unsigned(r), &unsigned(s)])
            }
        })
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &self.random, message, &mut signature).map_err(|_| KeyError::Sign)?;
                Ok(signature)
            }
            Pair::Ecdsa(pair, _) => Ok(pair.sign(&self.random, message).map_err(|_| KeyError::Sign)?.as_ref().to_vec()),
        }
    }
}

fn rsa(read: Result<RsaKeyPair, ring::error::KeyRejected>) -> Result<Pair, KeyError> {
    read.map(|pair| Pair::Rsa(Box::new(pair))).map_err(|error| KeyError::Refused(error.to_string()))
}

/// Reads an ECDSA key: tries each curve with the PKCS #8 encoding that `pkcs8` returns for it.
fn ecdsa(pkcs8: impl Fn(&Curve) -> Zeroizing<Vec<u8>>) -> Result<Pair, KeyError> {
    let mut refused = KeyError::Missing;
    for curve in &CURVES {
        match EcdsaKeyPair::from_pkcs8(curve.algorithm, &pkcs8(curve), &SystemRandom::new()) {
            Ok(pair) => return Ok(Pair::Ecdsa(Box::new(pair), curve)),
            Err(error) => refused = KeyError::Refused(error.to_string()),
        }
    }
    Err(refused)
}

/// Returns a SEC 1 key in the envelope of PKCS #8.
fn sec1_in_pkcs8(curve: &Curve, sec1: &[u8]) -> Zeroizing<Vec<u8>> {
    let version = [0x02, 0x01, 0x00];
    let algorithm = der(SEQUENCE, &[EC_ID, curve.id].concat());
    let key = Zeroizing::new(der(OCTET_STRING, sec1));
    Zeroizing::new(der(SEQUENCE, &Zeroizing::new([&version[..], &algorithm, &key].concat())))
}

/// Returns the public key as `SubjectPublicKeyInfo`.
fn public_key(pair: &Pair) -> Vec<u8> {
    let (algorithm, key) = match pair {
        Pair::Rsa(pair) => (RSA_ID.to_vec(), pair.public_key().as_ref()),
        Pair::Ecdsa(pair, curve) => ([EC_ID, curve.id].concat(), pair.public_key().as_ref()),
    };
    nested(SEQUENCE, &[&der(SEQUENCE, &algorithm), &bits(key)])
}

#[cfg(test)]
mod tests {
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
        VerificationAlgorithm,
    };

    use super::*;

    macro_rules! key {
        ($name:literal) => {
            include_bytes!(concat!("testdata/", $name, ".pem"))
        };
    }

    fn public_bytes(key: &SigningKey) -> Vec<u8> {
        match &key.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ecdsa(pair, _) => pair.public_key().as_ref().to_vec(),
        }
    }

    #[test]
    fn every_form_of_a_key_signs() {
        // The ids are the hashes of the SubjectPublicKeyInfo that OpenSSL writes.
        let (rsa, p256, p384) = (
            "DzUXI-pWK6dE3CybzUFODg18gqYEJ6_LOLJJYqRY_18",
            "v_lyx8lEFEq_imUoZWT_50Vne_y89OU8M4_d0VKKJ5Q",
            "yx1VCPpgu1sNM-h0WT5dh5MHP9Yy0zAslCBfVZAoKfU",
        );
        let cases: [(&[u8], &str, &str, &'static dyn VerificationAlgorithm); 5] = [
            (key!("rsa-pkcs1"), rsa, "RS256", &RSA_PKCS1_2048_8192_SHA256),
            (key!("rsa-pkcs8"), rsa, "RS256", &RSA_PKCS1_2048_8192_SHA256),
            (key!("p256-sec1"), p256, "ES256", &ECDSA_P256_SHA256_FIXED),
            (key!("p256-pkcs8"), p256, "ES256", &ECDSA_P256_SHA256_FIXED),
            (key!("p384-sec1"), p384, "ES384", &ECDSA_P384_SHA384_FIXED),
        ];
        for (pem, id, algorithm, verification) in cases {
            let key = SigningKey::from_pem(pem).expect(algorithm);
            assert_eq!(key.id(), id, "{algorithm}");
            let token = key.token(&json!({"sub": "x"})).expect("signed");
            let (signed, signature) = token.rsplit_once('.').expect("three parts");
            let (header, claims) = signed.split_once('.').expect("three parts");
            let text = |part: &str| String::from_utf8(BASE64_URL.decode(part).expect("base64")).expect("text");
            assert_eq!(text(header), format!(r#"{{"alg":"{algorithm}","kid":"{id}"}}"#));
            assert_eq!(text(claims), r#"{"sub":"x"}"#);
            UnparsedPublicKey::new(verification, public_bytes(&key))
                .verify(signed.as_bytes(), &BASE64_URL.decode(signature).expect("base64"))
                .expect("the signature is good");
            assert!(!format!("{key:?}").contains("pair"), "keys are not printed");
        }
    }

    #[test]
    fn other_keys_are_refused_with_the_reason() {
        for (pem, word) in [
            (&b""[..], "holds no private key"),
            (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "holds no private key"),
            (key!("p521-sec1"), "P-256 or P-384"),
            (key!("rsa1024"), "2048 to 4096 bits"),
        ] {
            let error = SigningKey::from_pem(pem).expect_err(word);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

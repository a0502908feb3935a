//! The phases of a proxied request.

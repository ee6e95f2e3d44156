//go:build tools

// Package tools imports upstream programs that are built unchanged, and so keeps them in go.mod.
package tools

import _ "github.com/opencontainers/runc"

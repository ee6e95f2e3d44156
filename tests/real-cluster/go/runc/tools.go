//go:build tools

// Package tools keeps the programs that are built as they come from upstream in go.mod.
package tools

import _ "github.com/opencontainers/runc"

//go:build tools

// Package tools keeps the program that is built as it comes from upstream in go.mod.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"

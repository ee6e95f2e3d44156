//go:build ignore

// Records the histograms of Prometheus' Go library for given values, with upstream's options for native buckets
// (component-base, metrics/internal). Run in the root of upstream's source, with this file's path:
//
//	GOWORK=off GOFLAGS=-mod=mod go run record.go > recorded.jsonl
//
// Numbers are the bits of their 64-bit form, because JSON has neither infinity nor NaN.
package main

import (
	"encoding/json"
	"math"
	"math/rand"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

type bits uint64

type scenario struct {
	Name          string     `json:"name"`
	Values        []bits     `json:"values"`
	Count         uint64     `json:"count"`
	Sum           bits       `json:"sum"`
	Classic       []uint64   `json:"classic"`
	Schema        int32      `json:"schema"`
	ZeroThreshold bits       `json:"zeroThreshold"`
	ZeroCount     uint64     `json:"zeroCount"`
	PositiveSpans [][2]int64 `json:"positiveSpans"`
	PositiveDelta []int64    `json:"positiveDeltas"`
	NegativeSpans [][2]int64 `json:"negativeSpans"`
	NegativeDelta []int64    `json:"negativeDeltas"`
}

func spans(of []*dto.BucketSpan) [][2]int64 {
	pairs := [][2]int64{}
	for _, span := range of {
		pairs = append(pairs, [2]int64{int64(span.GetOffset()), int64(span.GetLength())})
	}
	return pairs
}

func record(name string, values ...float64) scenario {
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:                           "recorded",
		Buckets:                        []float64{0.001, 1, 1000},
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 160,
	})
	recorded := scenario{Name: name, Values: []bits{}, Classic: []uint64{}}
	for _, value := range values {
		histogram.Observe(value)
		recorded.Values = append(recorded.Values, bits(math.Float64bits(value)))
	}
	var metric dto.Metric
	if err := histogram.Write(&metric); err != nil {
		panic(err)
	}
	written := metric.GetHistogram()
	for _, bucket := range written.GetBucket() {
		recorded.Classic = append(recorded.Classic, bucket.GetCumulativeCount())
	}
	recorded.Count = written.GetSampleCount()
	recorded.Sum = bits(math.Float64bits(written.GetSampleSum()))
	recorded.Schema = written.GetSchema()
	recorded.ZeroThreshold = bits(math.Float64bits(written.GetZeroThreshold()))
	recorded.ZeroCount = written.GetZeroCount()
	recorded.PositiveSpans, recorded.PositiveDelta = spans(written.GetPositiveSpan()), append([]int64{}, written.GetPositiveDelta()...)
	recorded.NegativeSpans, recorded.NegativeDelta = spans(written.GetNegativeSpan()), append([]int64{}, written.GetNegativeDelta()...)
	return recorded
}

// around returns a value and its neighbours.
func around(value float64) []float64 {
	return []float64{math.Nextafter(value, 0), value, math.Nextafter(value, math.Inf(1))}
}

func main() {
	random := rand.New(rand.NewSource(37))
	all := []scenario{
		record("no value"),
		record("zeros", 0, math.Copysign(0, -1)),
		record("the zero bucket's bounds", append(around(math.Ldexp(1, -128)), -math.Ldexp(1, -128), -math.Ldexp(1, -127))...),
		record("infinite", math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64),
		record("no number", math.NaN(), 1, math.NaN()),
		record("subnormal", math.SmallestNonzeroFloat64, 5e-310, 2.2e-308),
		record("durations", 0.0004, 0.0012, 0.0013, 0.0029, 0.0031, 0.012, 0.012, 0.2, 1.5, 30),
		record("gaps of one, two and three buckets", 1, 1.2, 1.45, 1.9, 2.3, 3.5),
		record("both signs", -3, -2.5, -0.1, 0.1, 2.5, 3, 3, -3),
	}
	// Each bucket's bound in one octave, and powers of two over the whole range.
	for eighth := 0; eighth < 8; eighth++ {
		for _, value := range around(math.Pow(2, float64(eighth)/8)) {
			all = append(all, record("bound of an octave", value))
		}
	}
	for exponent := -127; exponent <= 1023; exponent += 50 {
		for _, value := range around(math.Ldexp(1, exponent)) {
			all = append(all, record("power of two", value, -value))
		}
	}
	sequence := func(name string, count int, value func(at int) float64) {
		values := []float64{}
		for at := 0; at < count; at++ {
			values = append(values, value(at))
		}
		all = append(all, record(name, values...))
	}
	sequence("as many buckets as allowed", 160, func(at int) float64 { return math.Pow(2, float64(at)/8) })
	sequence("one bucket too many", 161, func(at int) float64 { return math.Pow(2, float64(at)/8) })
	sequence("one bucket too many below one", 161, func(at int) float64 { return math.Pow(2, -float64(at)/8) })
	sequence("one bucket too many of both signs", 161, func(at int) float64 {
		return math.Copysign(math.Pow(2, float64(at/2)/8), float64(at%2)-0.5)
	})
	sequence("the lowest resolution", 326, func(at int) float64 {
		return math.Copysign(math.Ldexp(1.3, at/2*7-120), float64(at%2)-0.5)
	})
	sequence("wide and random", 300, func(int) float64 { return math.Exp(random.NormFloat64() * 30) })
	sequence("wide and random of both signs", 300, func(int) float64 {
		return math.Copysign(math.Exp(random.NormFloat64()*20), random.NormFloat64())
	})
	encoder := json.NewEncoder(os.Stdout)
	for _, one := range all {
		if err := encoder.Encode(one); err != nil {
			panic(err)
		}
	}
}

// stress replaces the Debian program of that name in the image of upstream's resource consumer, with only those flags
// that the consumer uses: `stress -m 1 --vm-bytes 100M --vm-hang 0 -t 30` occupies 100 MiB of memory for 30 seconds.
package main

import (
	"flag"
	"log"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	flag.Int("m", 1, "number of workers, always one")
	flag.Int("vm-hang", 0, "seconds between changes of the memory, never changed")
	bytes := flag.String("vm-bytes", "", "size of the memory in MiB, such as 100M")
	seconds := flag.Int("t", 0, "seconds until the end")
	flag.Parse()
	mebibytes, err := strconv.Atoi(strings.TrimSuffix(*bytes, "M"))
	if err != nil {
		log.Fatalf("--vm-bytes=%s: %v", *bytes, err)
	}
	memory := make([]byte, mebibytes<<20)
	for offset := 0; offset < len(memory); offset += os.Getpagesize() {
		memory[offset] = 1
	}
	time.Sleep(time.Duration(*seconds) * time.Second)
	log.Printf("occupied %d MiB", len(memory)>>20)
}

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table writes the report for people.
func (r *Report) Table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WHAT\tUNIT\tN\tP50\tP95\tP99\tRATIO\tAGAINST\tTARGET")
	for _, x := range r.Rows {
		ratio, target := "", ""
		if x.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", x.Ratio)
		}
		if x.Target > 0 {
			target = fmt.Sprintf("≤ %g", x.Target)
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%s\t%s\t%s\n", x.Name, x.Unit, x.N, x.P50, x.P95, x.P99, ratio, x.Against, target)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(tw, "note: %s\n", n)
	}
	return tw.Flush()
}

"""HTML pages: templates, plots and pictures, the comparison report and the retrieval gallery."""

"""What more minibatches in flight give on slow links, simulated and measured."""

"""Tools that live on servers speaking the Model Context Protocol. Called through the pipeline like every other tool."""

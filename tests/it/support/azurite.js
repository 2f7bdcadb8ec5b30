// Runs Azurite in this process, and exits with its standard input.
process.stdin.resume().on("end", () => process.exit(0));
require(process.env.AZURITE);

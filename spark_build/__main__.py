from spark_build.cli.main import run

if __name__ == "__main__":
    run()

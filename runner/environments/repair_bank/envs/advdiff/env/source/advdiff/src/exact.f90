! Initial conditions and, where the deck has one, the exact solution, as averages over a cell.
module exact
  use kinds, only: dp, pi
  use deck, only: deck_t
  use grid, only: grid_t
  implicit none

contains

  pure logical function has_exact(d)
    type(deck_t), intent(in) :: d
    has_exact = d%case == 'wave' .or. d%case == 'mode' .or. d%case == 'front'
  end function has_exact

  ! The solution at time t in the cell (i, j); for cases without an exact solution only t = 0 has a meaning.
  function solution(d, g, i, j, t) result(c)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    integer, intent(in) :: i, j
    real(dp), intent(in) :: t
    real(dp) :: c(d%species), x, y
    x = g%x_centre(i)
    y = g%y_centre(j)
    select case (d%case)
    case ('wave', 'mode')
      c = travelling_mode(d, g, x, y, t)
    case ('front')
      c = fisher_front(x - 0.45_dp * g%length_x, t)
    case ('blob')
      c = exp(-((x / g%length_x - 0.5_dp)**2 + (y / g%length_y - 0.7_dp)**2) / 0.012_dp)
    case ('stripe')
      c = merge(1.0_dp, 0.0_dp, y > 0.5_dp * g%length_y)
    case ('empty')
      c = 0.0_dp
    case ('seeds')
      c = seeds(x / g%length_x, y / g%length_y)
    case default
      error stop 'exact: case must be wave, mode, front, blob, stripe, empty or seeds'
    end select
  end function solution

  ! 1 + sin(kx x) sin(ky y), carried by the uniform flow, damped by diffusion and decay. Its cell average is the
  ! value at the centre times sinc of half a cell in each direction.
  pure real(dp) function travelling_mode(d, g, x, y, t)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: x, y, t
    real(dp) :: kx, ky, damping
    kx = 2.0_dp * pi / g%length_x
    ky = 2.0_dp * pi / g%length_y
    damping = exp(-d%diffusivity(1) * (kx**2 + ky**2) * t)
    travelling_mode = exp(-d%decay * t) * (1.0_dp + damping * sinc(0.5_dp * kx * g%dx) * sinc(0.5_dp * ky * g%dy) &
      * sin(kx * (x - d%speed_x * t)) * sin(ky * (y - d%speed_y * t)))
  end function travelling_mode

  pure real(dp) function sinc(a)
    real(dp), intent(in) :: a
    sinc = sin(a) / a
  end function sinc

  ! The travelling wave of u_t = u_xx + u (1 - u) that has a closed form: speed 5 / sqrt(6) (Ablowitz, Zeppetella 1979).
  pure real(dp) function fisher_front(x, t)
    real(dp), intent(in) :: x, t
    fisher_front = 1.0_dp / (1.0_dp + exp((x - 5.0_dp * t / sqrt(6.0_dp)) / sqrt(6.0_dp)))**2
  end function fisher_front

  ! The uniform state (1, 0) of Gray-Scott, disturbed by two smooth seeds of V.
  pure function seeds(x, y) result(c)
    real(dp), intent(in) :: x, y
    real(dp) :: c(2), bump
    bump = exp(-((x - 0.4_dp)**2 + (y - 0.45_dp)**2) / 0.01_dp) + exp(-((x - 0.65_dp)**2 + (y - 0.6_dp)**2) / 0.006_dp)
    c = [1.0_dp - 0.5_dp * min(bump, 1.0_dp), 0.25_dp * min(bump, 1.0_dp)]
  end function seeds

end module exact
